#include <data/buckets.hpp>

#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace trainer::data {
namespace {

void check(const BucketOptions& options) {
  const auto refuse = [](const std::string& text) { throw Error(ExitCode::bad_recipe, "data: " + text); };
  if (options.multiple < 1) refuse("sides must be multiples of at least 1");
  if (options.resolution.empty() || options.resolution.size() > 2) refuse("resolution takes one or two numbers");
  for (const int64_t side : options.resolution) {
    if (side <= 0 || side % options.multiple != 0 || side >= int64_t{1} << 20) {
      refuse("resolution " + std::to_string(side) + " is not a multiple of " + std::to_string(options.multiple) +
             ", which this model and autoencoder need");
    }
  }
  if (!(options.max_aspect >= 1)) refuse("max_aspect must be at least 1");
}

}  // namespace

BucketGrid::BucketGrid(const BucketOptions& options) {
  check(options);
  const int64_t side = options.resolution.front(), step = options.multiple;
  if (options.resolution.size() == 2 || side < 8 * step) {
    buckets_ = {{side, options.resolution.back()}};
    return;
  }
  std::set<std::pair<int64_t, int64_t>> sizes;
  for (int64_t longer = side;; longer += step) {
    const int64_t shorter = side * side / longer / step * step;
    if (shorter == 0 || static_cast<double>(longer) / static_cast<double>(shorter) > options.max_aspect) break;
    sizes.insert({longer, shorter});
    sizes.insert({shorter, longer});
  }
  for (const auto& [width, height] : sizes) buckets_.push_back({width, height});
}

Bucket BucketGrid::assign(int64_t width, int64_t height) const {
  // Compared as the ratio of the aspects, by cross multiplication: exact, whatever the C library's logarithm does.
  const auto distance = [&](const Bucket& bucket) {
    const double first = static_cast<double>(width * bucket.height),
                 second = static_cast<double>(height * bucket.width);
    return std::max(first, second) / std::min(first, second);
  };
  Bucket best = buckets_.front();
  for (const Bucket& bucket : buckets_) {
    const double candidate = distance(bucket), current = distance(best);
    const bool larger = bucket.width * bucket.height > best.width * best.height;
    if (candidate < current || (candidate == current && larger)) best = bucket;
  }
  return best;
}

double cover_scale(int64_t width, int64_t height, const Bucket& bucket) {
  return std::max(static_cast<double>(bucket.width) / static_cast<double>(width),
                  static_cast<double>(bucket.height) / static_cast<double>(height));
}

}  // namespace trainer::data
