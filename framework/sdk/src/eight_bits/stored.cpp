/// @file Weights that a file holds in fp8. Layouts: ComfyUI's QUANTIZATION.md and its older "scaled_fp8" files;
/// musubi-tuner's fp8_optimization_utils.py; transformers' fine-grained fp8 integration (weight_block_size = [128,
/// 128]).
#include "numbers.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <trainer/sdk/error.hpp>
#include <trainer/sdk/names.hpp>
#include <trainer/sdk/weight_scales.hpp>

#include <nlohmann/json.hpp>
#include <optional>

namespace trainer::eight_bits {
namespace {

constexpr int64_t kTile = 128;
constexpr int64_t kLongestNote = 4096;  // bytes; theirs have about 60

[[noreturn]] void refuse(const WeightSource& source, const std::string& name, const std::string& problem) {
  throw Error(ExitCode::bad_input, source.describe() + ": tensor " + quote_name(name) + " " + problem, "FP8_SCALE");
}

std::string find_scale(const WeightSource& source, const std::string& name) {
  const std::vector<std::string> scales = scales_of(source, name);
  if (scales.size() > 1) refuse(source, scales[1], "and " + quote_name(scales[0]) + " both scale one weight");
  return scales.empty() ? "" : scales[0];
}

/// How scales lie over a weight: one for `rows` x `columns` numbers.
struct Layout {
  int64_t rows = 0, columns = 0;
};

/// Of `scale`, a matrix; nullopt when it is in none of the layouts of the header. `tiles`: where both fit, tiles win.
std::optional<Layout> layout_of(const at::Tensor& scale, int64_t out, int64_t in, bool tiles) {
  if (scale.numel() == 1) return Layout{out, in};
  const auto parts = [](int64_t size) { return (size + kTile - 1) / kTile; };
  const int64_t height = scale.size(0), width = scale.size(1);
  const bool tiled = height == parts(out) && width == parts(in);
  const bool blocks = height == out && width > 0 && in % width == 0;  // one block: a scale an output channel
  if (tiled && (tiles || !blocks)) return Layout{kTile, kTile};
  if (blocks) return Layout{1, in / width};
  return std::nullopt;
}

Packed with_scale(const WeightSource& source, at::Tensor values, at::Tensor scale, const std::string& name) {
  const int64_t out = values.size(0), in = values.size(1);
  const std::string shape = shape_text(scale.sizes());
  if (scale.dim() == 3 && scale.size(2) == 1) scale = scale.squeeze(2);
  if (scale.numel() == 1) scale = scale.reshape({1, 1});
  std::optional<Layout> layout;
  if (scale.dim() == 1 && scale.size(0) == out)  // fewer would be groups of rows, which no known file has
    layout = Layout{1, in}, scale = scale.unsqueeze(1);
  else if (scale.dim() == 2)
    layout = layout_of(scale, out, in, name.ends_with("_inv"));
  if (!layout)
    refuse(source, name,
           "of shape " + shape + " scales no weight of shape " + shape_text(values.sizes()) +
               " in a layout known here (one, one an output channel, blocks along the input, tiles)");
  if (layout->rows == kTile) scale = scale.repeat_interleave(kTile, 0).narrow(0, 0, out);
  return {std::move(values), scale.contiguous(), layout->columns};
}

/// Refuses what a "comfy_quant" note says beyond plain scaled fp8 (rotated weights, for example).
void check_note(WeightSource& source, const std::string& name) {
  const TensorInfo* info = source.find(name);
  if (info == nullptr) return;
  if (info->dtype != at::kByte) refuse(source, name, "should be JSON text in bytes");
  const at::Tensor bytes = source.read(name).contiguous();
  if (bytes.is_meta()) return;  // a dry run
  // Brackets in each other are gone through by recursion; so few cannot use up the stack.
  if (bytes.numel() > kLongestNote) refuse(source, name, "is longer than a note of how a weight is packed");
  const auto* text = bytes.const_data_ptr<uint8_t>();
  const auto note = nlohmann::json::parse(text, text + bytes.numel(), nullptr, /*allow_exceptions=*/false);
  if (!note.is_object()) refuse(source, name, "is not JSON");
  for (const auto& [key, value] : note.items()) {
    const bool known = key == "full_precision_matrix_mult" ||
                       (key == "format" && (value == "float8_e4m3fn" || value == "float8_e5m2"));
    if (!known)
      refuse(source, name,
             "describes a packing that is not plain fp8 with a scale: " +
                 quote_name(key + " = " + value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
  }
}

at::Tensor read_scale(WeightSource& source, const std::string& name) {
  const at::ScalarType dtype = source.find(name)->dtype;
  if (dtype != at::kFloat && dtype != at::kBFloat16 && dtype != at::kHalf)
    refuse(source, name, std::string("is ") + c10::toString(dtype) + "; scales are fp32, bf16 or fp16");
  const at::Tensor stored = source.read(name);
  // A copy: the stored tensor may be a view of the file.
  at::Tensor scale = stored.to(stored.options().dtype(at::kFloat), /*non_blocking=*/false, /*copy=*/true);
  const auto holds = [](const at::Tensor& all) { return all.is_meta() || all.item<bool>(); };  // dry runs: shapes only
  if (!holds(at::isfinite(scale).all()) || !holds((scale >= 0).all()))
    refuse(source, name, "holds negative numbers, NaN or infinity; scales are positive");
  return scale;
}

}  // namespace

std::optional<Packed> stored_fp8(WeightSource& source, const std::string& name) {
  const std::string scale_name = find_scale(source, name);
  const at::ScalarType dtype = source.find(name)->dtype;
  if (dtype != at::kFloat8_e4m3fn && dtype != at::kFloat8_e5m2) {
    if (!scale_name.empty())
      refuse(
          source, scale_name,
          "scales a weight that is " + std::string(c10::toString(dtype)) + ", not fp8: this packing is not known here");
    return std::nullopt;
  }
  check_note(source, name.substr(0, name.rfind('.') + 1) + "comfy_quant");
  at::Tensor values = source.read(name).clone();
  require_finite(values, name);
  if (scale_name.empty()) return Packed{values, at::ones({1, 1}), values.size(1)};
  return with_scale(source, std::move(values), read_scale(source, scale_name), scale_name);
}

}  // namespace trainer::eight_bits
