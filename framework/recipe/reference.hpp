/// @file The recipe's keys explained: one key for `trainer explain`, all of them for docs/recipe-reference.md.
#pragma once

#include <recipe/schema.hpp>

#include <span>
#include <string>
#include <string_view>

namespace trainer::recipe {

/// Type, default, range and help of a key ("optimizer.lr"), or the keys of a section ("optimizer", "memory.NAME"). An
/// option that several components have is explained for each; an empty key: all sections. Throws Error (usage) with the
/// nearest name.
std::string explain(std::string_view key, std::span<const ComponentSchema> components);

/// The whole reference as Markdown.
std::string reference_markdown(std::span<const ComponentSchema> components);

}  // namespace trainer::recipe
