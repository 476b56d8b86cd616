#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <adapter/fuse.hpp>

#include <algorithm>
#include <cmath>

namespace trainer::adapter {
namespace {

bool is_zero(const at::Tensor& tensor) { return !tensor.ne(0).any().item<bool>(); }

bool power_of_two(double scale) {
  int exponent = 0;
  return std::frexp(scale, &exponent) == 0.5;
}

const LoraLayer* find(std::span<const LoraLayer> parts, const std::string& name) {
  const auto it = std::find_if(parts.begin(), parts.end(), [&](const LoraLayer& part) { return part.layer == name; });
  return it == parts.end() ? nullptr : &*it;
}

/// `tensor` with zeros after it up to `size` in dimension `dim`.
at::Tensor padded(const at::Tensor& tensor, int64_t dim, int64_t size) {
  if (tensor.size(dim) == size) return tensor;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = size - tensor.size(dim);
  return at::cat({tensor, at::zeros(shape, tensor.options())}, dim);
}

/// The rank without the last rows of A and columns of B that are both zero: what `padded` added.
int64_t used_rank(const at::Tensor& down, const at::Tensor& up) {
  int64_t rank = down.size(0);
  while (rank > 1 && is_zero(down[rank - 1]) && is_zero(up.select(1, rank - 1))) --rank;
  return rank;
}

/// One A for all: the Bs stand one over the other, zeros where a part is missing.
LoraLayer stack_up(const std::string& fused, const std::vector<std::string>& names, std::span<const LoraLayer> parts) {
  std::vector<at::Tensor> rows;
  for (const std::string& name : names) {
    const LoraLayer* part = find(parts, name);
    rows.push_back(part != nullptr ? part->up : at::zeros(parts[0].up.sizes(), parts[0].up.options()));
  }
  return {fused, parts[0].down, at::cat(rows), parts[0].alpha};
}

/// Every part has its own rows of A and its own block of B, all of the largest rank, so that the blocks can be told.
LoraLayer block_diagonal(const std::string& fused, const std::vector<std::string>& names,
                         std::span<const LoraLayer> parts) {
  int64_t rank = 0;
  for (const LoraLayer& part : parts) rank = std::max(rank, part.rank());
  const auto count = static_cast<int64_t>(names.size());
  const at::Tensor &a = parts[0].down, &b = parts[0].up;
  std::vector<at::Tensor> downs, rows;
  for (int64_t i = 0; i < count; ++i) {
    const LoraLayer* part = find(parts, names[static_cast<std::size_t>(i)]);
    downs.push_back(part != nullptr ? padded(part->down, 0, rank) : at::zeros({rank, a.size(1)}, a.options()));
    const at::Tensor block = part != nullptr ? padded(part->up, 1, rank) : at::zeros({b.size(0), rank}, b.options());
    rows.push_back(at::cat({at::zeros({b.size(0), i * rank}, block.options()), block,
                            at::zeros({b.size(0), (count - 1 - i) * rank}, block.options())},
                           1));
  }
  return {fused, at::cat(downs), at::cat(rows), parts[0].scale() * static_cast<double>(count * rank)};
}

bool is_block_diagonal(const at::Tensor& up, int64_t count) {
  if (up.size(1) % count != 0) return false;
  const int64_t rows = up.size(0) / count, columns = up.size(1) / count;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor band = up.narrow(0, i * rows, rows);
    if (!is_zero(band.narrow(1, 0, i * columns)) ||
        !is_zero(band.narrow(1, (i + 1) * columns, (count - 1 - i) * columns)))
      return false;
  }
  return true;
}

}  // namespace

LoraLayer fuse(const std::string& fused, const std::vector<std::string>& names, std::span<const LoraLayer> parts) {
  std::vector<LoraLayer> same(parts.begin(), parts.end());
  const bool one_scale = std::all_of(same.begin(), same.end(),
                                     [&](const LoraLayer& part) { return part.scale() == same.front().scale(); });
  if (!one_scale)
    for (LoraLayer& part : same) part = fold(std::move(part));
  const at::Tensor& a = same.front().down;
  const bool one_a = std::all_of(same.begin(), same.end(), [&](const LoraLayer& part) {
    return part.down.scalar_type() == a.scalar_type() && at::equal(part.down, a);
  });
  return one_a ? stack_up(fused, names, same) : block_diagonal(fused, names, same);
}

std::vector<LoraLayer> split(const LoraLayer& layer, const std::vector<std::string>& names) {
  const auto count = static_cast<int64_t>(names.size());
  const int64_t rows = layer.up.size(0) / count;
  const bool blocks = count > 1 && is_block_diagonal(layer.up, count);
  const int64_t rank = blocks ? layer.rank() / count : layer.rank();
  const bool untrained = is_zero(layer.up);
  std::vector<LoraLayer> parts;
  for (int64_t i = 0; i < count; ++i) {
    LoraLayer part{names[static_cast<std::size_t>(i)], layer.down, layer.up.narrow(0, i * rows, rows), 0};
    if (blocks) {
      part.down = part.down.narrow(0, i * rank, rank);
      part.up = part.up.narrow(1, i * rank, rank);
      const int64_t used = used_rank(part.down, part.up);
      part.down = part.down.narrow(0, 0, used);
      part.up = part.up.narrow(1, 0, used);
    }
    // Beside trained parts, zeros are what `fuse` writes for a part that is missing; in blocks A is then zero too.
    if (!untrained && is_zero(part.up) && (!blocks || is_zero(part.down))) continue;
    part.down = part.down.contiguous();
    part.up = part.up.contiguous();
    part.alpha = part.rank() == layer.rank() ? layer.alpha : layer.scale() * static_cast<double>(part.rank());
    parts.push_back(std::move(part));
  }
  return parts;
}

LoraLayer swap_halves(LoraLayer layer) {
  const int64_t half = layer.up.size(0) / 2;
  layer.up = at::cat({layer.up.narrow(0, half, layer.up.size(0) - half), layer.up.narrow(0, 0, half)});
  return layer;
}

LoraLayer fold(LoraLayer layer) {
  const double scale = layer.scale();
  if (scale == 1) return layer;
  layer.alpha = static_cast<double>(layer.rank());
  const at::Tensor scaled = layer.up * scale;
  // 8 or 11 bits of a product would lose what the training found; of a power of two they lose nothing.
  const bool exact = power_of_two(scale) && at::equal(scaled / scale, layer.up);
  layer.up = exact ? scaled : layer.up.to(at::kFloat) * scale;
  return layer;
}

LoraLayer unfold(LoraLayer layer, double scale) {
  layer.alpha = scale * static_cast<double>(layer.rank());
  layer.up = (layer.up / scale).to(layer.down.scalar_type());
  return layer;
}

}  // namespace trainer::adapter
