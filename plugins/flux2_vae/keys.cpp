#include "keys.hpp"

#include <trainer/sdk/error.hpp>
#include <trainer/sdk/key_contract.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace trainer::flux2_vae {
namespace {

using Shape = std::vector<int64_t>;

constexpr std::array kPrefixes = {"vae.", "first_stage_model."};
constexpr std::array kHalves = {"encoder.", "decoder."};
constexpr std::array kDiffusersStarts = {"encoder.down_blocks.", "decoder.up_blocks."};
constexpr std::array kBflStarts = {"encoder.down.", "decoder.up."};
// What lies next to the latents is computed in fp32: cheap there, and the batch norm enlarges its rounding errors.
constexpr std::array kFp32 = {"bn.", "quant_conv.", "post_quant_conv.", "encoder.conv_norm_out.", "encoder.conv_out."};
constexpr const char* kUnusedTensor = "bn.num_batches_tracked";  // PyTorch's counter, absent from some files

struct Rename {
  const char *diffusers, *bfl;
};
// Applied in this order to a diffusers name; the numbers of mid and up blocks are handled beside them.
constexpr std::array kRenames = {
    Rename{".down_blocks.", ".down."},
    Rename{".up_blocks.", ".up."},
    Rename{".resnets.", ".block."},
    Rename{".conv_shortcut.", ".nin_shortcut."},
    Rename{".downsamplers.0.", ".downsample."},
    Rename{".upsamplers.0.", ".upsample."},
    Rename{".mid_block.block.0.", ".mid.block_1."},
    Rename{".mid_block.block.1.", ".mid.block_2."},
    Rename{".mid_block.attentions.0.", ".mid.attn_1."},
    Rename{".attn_1.group_norm.", ".attn_1.norm."},
    Rename{".attn_1.to_q.", ".attn_1.q."},
    Rename{".attn_1.to_k.", ".attn_1.k."},
    Rename{".attn_1.to_v.", ".attn_1.v."},
    Rename{".attn_1.to_out.0.", ".attn_1.proj_out."},
    Rename{".conv_norm_out.", ".norm_out."},
};

bool starts_with_any(const std::string& name, const std::string& prefix, std::span<const char* const> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](const char* start) { return name.starts_with(prefix + start); });
}

/// Number of consecutive blocks "<stem>0.", "<stem>1.", ... of a diffusers-style numbering among the file's names.
int64_t count_blocks(const std::vector<std::string>& names, const std::string& stem) {
  int64_t count = 0;
  const auto has = [&](int64_t index) {
    const std::string start = stem + std::to_string(index) + ".";
    const auto it = std::lower_bound(names.begin(), names.end(), start);
    return it != names.end() && it->starts_with(start);
  };
  while (has(count)) ++count;
  return count;
}

std::string replace_once(std::string text, const std::string& from, const std::string& to) {
  if (const auto at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::string to_bfl(std::string name, int64_t levels) {
  if (name.starts_with("quant_conv.")) return "encoder." + name;
  if (name.starts_with("post_quant_conv.")) return "decoder." + name;
  const std::string up = "decoder.up_blocks.";
  if (name.starts_with(up)) {
    const auto end = name.find('.', up.size());
    const int64_t index = std::stoll(name.substr(up.size(), end - up.size()));
    name = up + std::to_string(levels - 1 - index) + name.substr(end);
  }
  for (const Rename& rename : kRenames) name = replace_once(std::move(name), rename.diffusers, rename.bfl);
  return name;
}

/// Linear [o, i] and 1x1 convolution [o, i, 1, 1] hold the same numbers.
Shape plain(Shape shape) {
  if (shape.size() == 4 && shape[2] == 1 && shape[3] == 1) shape.resize(2);
  return shape;
}

/// The file's name of a required tensor: that of its layout, or the plain diffusers one (some BFL-style files keep
/// quant_conv outside encoder and decoder). Null when there is neither.
const TensorInfo* find_tensor(const WeightSource& file, const FileLayout& layout, const std::string& name) {
  const TensorInfo* info = file.find(file_name(layout, name));
  return info != nullptr ? info : file.find(layout.prefix + name);
}

}  // namespace

FileLayout detect_layout(const WeightSource& file) {
  const std::vector<std::string> names = file.names();
  FileLayout found;
  for (const char* prefix : kPrefixes) {
    const bool used = std::any_of(names.begin(), names.end(),
                                  [&](const std::string& name) { return starts_with_any(name, prefix, kHalves); });
    if (used) found.prefix = prefix;
  }
  bool diffusers = false, bfl = false;
  for (const std::string& name : names) {
    diffusers |= starts_with_any(name, found.prefix, kDiffusersStarts);
    bfl |= starts_with_any(name, found.prefix, kBflStarts);
  }
  if (diffusers == bfl) {
    std::string some;
    for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 3); ++i)
      some += (i ? ", \"" : "\"") + names[i] + "\"";
    const std::string seen = diffusers ? "mixes the tensor names of diffusers and of BFL"
                                       : "holds no autoencoder: no \"encoder.down_blocks.*\" (diffusers) and no "
                                         "\"encoder.down.*\" (BFL) among its " +
                                             std::to_string(names.size()) + " tensors";
    throw Error(ExitCode::bad_input, file.describe() + " " + seen + (some.empty() ? "" : "; it starts with " + some),
                "MODEL_KEYS");
  }
  found.layout = bfl ? Layout::bfl : Layout::diffusers;
  found.levels = count_blocks(names, found.prefix + (bfl ? "decoder.up." : "decoder.up_blocks."));
  return found;
}

std::string file_name(const FileLayout& layout, const std::string& name) {
  return layout.prefix + (layout.layout == Layout::bfl ? to_bfl(name, layout.levels) : name);
}

VaeConfig infer_config(const WeightSource& file, const FileLayout& layout) {
  const std::vector<std::string> names = file.names();
  const bool bfl = layout.layout == Layout::bfl;
  const auto size = [&](const std::string& name, std::size_t axis, int64_t otherwise) {
    const TensorInfo* info = find_tensor(file, layout, name);
    return info != nullptr && axis < info->shape.size() && info->shape[axis] > 0 ? info->shape[axis] : otherwise;
  };
  VaeConfig config;
  const std::string down = layout.prefix + (bfl ? "encoder.down." : "encoder.down_blocks.");
  const auto levels = std::clamp<int64_t>(count_blocks(names, down), 1, 8);
  config.layers_per_block = std::max<int64_t>(count_blocks(names, down + (bfl ? "0.block." : "0.resnets.")), 1);
  config.encoder_channels.resize(levels, 0);
  config.decoder_channels.resize(std::clamp<int64_t>(layout.levels, 1, 8), 0);
  for (int64_t i = 0; i < levels; ++i) {
    config.encoder_channels[i] = size("encoder.down_blocks." + std::to_string(i) + ".resnets.0.conv1.weight", 0, 512);
  }
  const auto decoder_levels = static_cast<int64_t>(config.decoder_channels.size());
  for (int64_t i = 0; i < decoder_levels; ++i) {
    config.decoder_channels[decoder_levels - 1 - i] =
        size("decoder.up_blocks." + std::to_string(i) + ".resnets.0.conv1.weight", 0, 512);
  }
  config.latent_channels = size("decoder.conv_in.weight", 1, config.latent_channels);
  const int64_t packed = size("bn.running_mean", 0, config.packed_channels());
  config.patch = std::max<int64_t>(std::llround(std::sqrt(static_cast<double>(packed) / config.latent_channels)), 1);
  config.quant_conv = find_tensor(file, layout, "quant_conv.weight") != nullptr;
  config.post_quant_conv = find_tensor(file, layout, "post_quant_conv.weight") != nullptr;
  config.mid_attention = find_tensor(file, layout, "encoder.mid_block.attentions.0.to_q.weight") != nullptr;
  return config;
}

void check_tensors(const WeightSource& file, const FileLayout& layout, const std::vector<TensorInfo>& required) {
  std::vector<NamedShape> expected;
  for (const TensorInfo& want : required) {
    const TensorInfo* have = find_tensor(file, layout, want.name);
    if (have == nullptr) {
      expected.push_back({file_name(layout, want.name), want.shape});
      continue;
    }
    const bool same = plain(have->shape) == plain(want.shape);
    expected.push_back(
        {have->name, same ? have->shape : want.shape, at::isFloatingType(have->dtype) ? "" : "a floating-point type"});
  }
  const auto ignored = [&](std::string_view name) {
    return !name.starts_with(layout.prefix) || name.substr(layout.prefix.size()) == kUnusedTensor;
  };
  check_key_contract(file.describe(), expected, named_shapes(file),
                     {.model = "the autoencoder",
                      .advice = "is the file complete, and does config.json belong to it?",
                      .ignored = ignored});
}

at::Tensor FileSupply::tensor(const std::string& name, const std::vector<int64_t>& shape) {
  const TensorInfo* info = find_tensor(file_, layout_, name);
  if (info == nullptr) throw Error(ExitCode::failed, "tensor \"" + name + "\" was not checked before reading");
  const at::ScalarType dtype = starts_with_any(name, "", kFp32) ? at::kFloat : dtype_;
  // A copy, since the source may be a mapped file that is closed or replaced while the encoder lives.
  return file_.read(info->name).to(device_, dtype, /*non_blocking=*/false, /*copy=*/true).reshape(shape);
}

}  // namespace trainer::flux2_vae
