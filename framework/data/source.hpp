/// @file From the [[data]] sections of a recipe to the list of samples: files found, captions read, headers checked.
///
/// Everything that is wrong is collected first and reported at once, by file and reason; nothing is skipped silently.
/// Layouts read: pictures with caption files beside them ("fox.png", "fox.txt"), or a metadata file
/// (<data/metadata.hpp>). Not data, as the peers have it: names that begin with a dot, the folders __MACOSX,
/// _latent_cache, _t_e_cache and _controls, and *-masklabel.png and *-condlabel.png. Links that lead out of the folder
/// are refused.
#pragma once

#include <data/buckets.hpp>
#include <recipe/recipe.hpp>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trainer::data {

/// A picture with its caption; `file` has passed the checks of its header, its pixels were not decoded yet.
struct Sample {
  std::filesystem::path file;
  std::string caption;            ///< clean, with the trigger; may be empty
  std::string content;            ///< XXH3-128 of the file's bytes
  int64_t width = 0, height = 0;  ///< as shown
  Bucket bucket{};                ///< the size it is trained at; {0, 0}: a text without a picture
  int64_t repeats = 1;
  std::size_t source = 0;  ///< index of its [[data]] section
  [[nodiscard]] bool is_picture() const { return bucket.width > 0; }
};

struct Dataset {
  std::vector<Sample> samples;     ///< by source, then by name (bytes of the relative path) or metadata line
  std::vector<std::string> notes;  ///< for the user: left out, enlarged, names that differ in case only, ...
};

struct ScanOptions {
  int64_t multiple = 16;       ///< sides of buckets are multiples of this, e.g. Autoencoder::spatial_factor
  bool verify_pixels = false;  ///< decode every picture; done anyway for the rest once one file is bad
  std::function<void(std::size_t done, std::size_t total)> progress{};  ///< after each file; may be empty
};

/// Throws Error: bad_input listing every unusable file with its reason (no caption, not UTF-8, damaged, too small,
/// too large, animated, ...), every source without pictures and every source without any caption; not_found for a
/// missing folder; bad_recipe for a resolution that `multiple` does not divide.
Dataset scan(std::span<const recipe::Data> sources, const ScanOptions& options);

/// Of texts without pictures: every file of a source that ends in one of its `captions` is a sample, its caption what
/// the file holds. Sorted by name. Throws Error as `scan`.
Dataset scan_texts(std::span<const recipe::Data> sources);

}  // namespace trainer::data
