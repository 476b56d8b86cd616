/// @file The three components of this library: a causal language model, what it is trained for, and how text becomes
/// its tokens.
#pragma once

#include <trainer/sdk/registrar.hpp>

namespace toy_lm {

/// Bytes are tokens 0 to 255; this one begins a text, ends it, and fills up what is left.
inline constexpr int64_t kEnd = 256;

trainer::Miniature miniature();
std::unique_ptr<trainer::Model> make_model(const trainer::ModelContext& context);
std::unique_ptr<trainer::Objective> make_next_token(const trainer::Options& options);
std::unique_ptr<trainer::TextEncoder> make_bytes(const trainer::EncoderContext& context);

}  // namespace toy_lm
