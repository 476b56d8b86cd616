/// @file What identifies a run, as hashes and texts: for keys of the cache, for checkpoints, and for ranks that must do
/// the same.
#pragma once

#include <assembly/encoders.hpp>
#include <cache/key.hpp>
#include <data/source.hpp>
#include <distributed/group.hpp>
#include <recipe/recipe.hpp>
#include <trainer/sdk/weights.hpp>

#include <map>
#include <string>

namespace trainer::identity {

/// "model": weights of `model`, as loaded; "model_config": config.json beside them; and of a LoRA that training starts
/// from "start", its values, and "start_config", adapter_config.json where that states its alpha. Throws Error as
/// opening them does.
std::map<std::string, std::string> identities_of_weights(const recipe::Recipe& recipe, const WeightSource& model);

/// What the encoders of a recipe are; headers alone are read.
struct EncoderIdentities {
  cache::EncoderIdentity text_encoder;
  cache::EncoderIdentity autoencoder;  ///< empty in a recipe without pictures
};
/// Throws Error as opening their files does.
EncoderIdentities identities_of(assembly::Encoders& encoders);

/// Of weights, tokenizer and options. The plugins' libraries are left out: a rebuilt plugin fills the cache again, but
/// does not end a run.
std::string identity_of(const EncoderIdentities& encoders);
/// Of what is trained on, in order.
std::string identity_of(const data::Dataset& dataset);

/// What a checkpoint of a run on `dataset`, as it is scanned, would hold as "data" and "encoders".
std::map<std::string, std::string> identities_of_data(assembly::Encoders& encoders, const data::Dataset& dataset);

/// What the first versions recorded as `key` ("encoders", "formats") for what is recorded as `now`: they hashed all
/// options, of whichever plugin. `now` itself for every other key.
std::string as_first_recorded(assembly::Encoders& encoders, const std::string& key, const std::string& now);

/// Collective: all ranks run one program with one recipe, model and encoders, each on devices of its own. Throws Error
/// naming the rank that does not.
void require_same_on_all(assembly::Encoders& encoders, distributed::Group& ranks);

}  // namespace trainer::identity
