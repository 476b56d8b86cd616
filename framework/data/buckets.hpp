/// @file Aspect-ratio buckets: the few sizes that all pictures of a data source are brought to, so that samples can be
/// stacked. Sides are multiples of the autoencoder's and model's step, areas about resolution².
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer::data {

/// A size in pixels.
struct Bucket {
  int64_t width = 0, height = 0;
  /// Identifies the size, e.g. for the sampler. Sides are below 2^20.
  [[nodiscard]] uint64_t key() const { return static_cast<uint64_t>(width) << 20 | static_cast<uint64_t>(height); }
  [[nodiscard]] std::string text() const { return std::to_string(width) + "x" + std::to_string(height); }
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketOptions {
  std::vector<int64_t> resolution = {512};  ///< {side}: buckets around side²; {width, height}: this one size
  int64_t multiple = 16;                    ///< sides are multiples of this
  double max_aspect = 2.0;                  ///< longer over shorter side, at least 1
};

/// The sizes of one data source and which picture goes where. A pure function of the options.
///
/// For every width that is a multiple of `multiple`, the height is the largest multiple for which the area does not
/// exceed side² (as in kohya's sd-scripts: the square is the largest bucket, so memory planned for it is enough), kept
/// if its aspect is within the limit; and the same with width and height exchanged. A side below 8 * multiple gets the
/// square only: the steps between sizes would be too coarse for the areas to be alike.
class BucketGrid {
 public:
  /// Throws Error (bad_recipe): a resolution that is not a positive multiple of `multiple`, an aspect below 1.
  explicit BucketGrid(const BucketOptions& options);
  /// Sorted by width, then height.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Nearest by |log aspect - log aspect|; among equals the larger area, then the narrower. Sides > 0.
  [[nodiscard]] Bucket assign(int64_t width, int64_t height) const;

 private:
  std::vector<Bucket> buckets_;
};

/// Factor by which a picture is scaled to cover its bucket; above 1 it is enlarged.
double cover_scale(int64_t width, int64_t height, const Bucket& bucket);

}  // namespace trainer::data
