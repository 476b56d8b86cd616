/// @file What messages are made of: quoted names, shapes, and "did you mean" with the nearest valid name. Free of
/// LibTorch.
#pragma once

#include <trainer/sdk/abi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// Up to `limit` names out of `valid`, nearest first (ties in the order of `valid`), by Damerau-Levenshtein distance,
/// ignoring case. Dotted names are compared by their last part and, with as many dots and other first parts, on the
/// whole. Names too far away are left out: more than a third of the longer length (one edit below 5 characters, two are
/// always allowed above), nothing in common, or 2 edits farther than the nearest. A name that continues the given one,
/// or the other way round, is near when 3 characters or more agree ("batch" and "batch_size").
TRAINER_API std::vector<std::string> nearest_names(std::string_view name, std::span<const std::string> valid,
                                                   std::size_t limit = 3);

/// " (did you mean \"a\" or \"b\"?)" or "" when nothing is near. Ready to append to a message.
TRAINER_API std::string did_you_mean(std::string_view name, std::span<const std::string> valid);

/// The same for names of tensors, with one suggestion at most. Compared is what stands between the dotted parts that
/// both begin and end with ("weight" alone is no likeness, nor is a long path in common); a name with whole parts
/// before or after the other is near too ("model.img_in.weight").
TRAINER_API std::string did_you_mean_tensor(std::string_view name, std::span<const std::string> valid);

/// Whether all of `text` fits `pattern`, in which `*` stands for any text, also none; everything else is literal. Goes
/// back to the last star only: at most length times length comparisons, no recursion.
TRAINER_API bool matches_glob(std::string_view pattern, std::string_view text);

/// A name from a file made safe for a message: control bytes escaped, cut to 120 bytes, in double quotes.
TRAINER_API std::string quote_name(std::string_view text);

/// "[2, 3]"
TRAINER_API std::string shape_text(std::span<const int64_t> shape);

}  // namespace trainer
