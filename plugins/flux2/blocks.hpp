/// @file The two block types of FLUX.2 and what travels between them.
///
/// Flow between blocks: the double blocks carry {img, txt}. A single block works on one sequence x = [txt, img]; it
/// accepts {img, txt} too and then joins them first, so that exactly the first single block does it, without a block of
/// another type and without state. The modulation tensors are shared raw and split inside each block (never passed as
/// a container of slices: diffusers issue 12776).
#pragma once

#include <trainer/sdk/model.hpp>

#include <vector>

#include "config.hpp"

namespace trainer::flux2 {

/// Places in Flow::shared.
enum Shared : std::size_t {
  kModImg,     ///< [B, 6d]: shift, scale, gate of attention, then of the MLP
  kModTxt,     ///< [B, 6d]
  kModSingle,  ///< [B, 3d]: shift, scale, gate
  kTemb,       ///< [B, d], for the epilogue
  kRope,       ///< [1 or B, S, head_dim/2, 2] fp32, text first
};
/// Places in Flow::sizes.
enum Sizes : std::size_t { kHeight, kWidth, kTextLength };

/// Image and text stream with their own weights, one attention over both.
class DoubleBlock final : public Block {
 public:
  DoubleBlock(ModelBuilder& build, const Config& config, int64_t index);
  std::vector<at::Tensor> forward(const Flow& flow) override;

 private:
  struct Stream {
    Linear q, k, v, out, mlp_in, mlp_out;
    ParameterPtr norm_q, norm_k;
  };
  Stream stream(ModelBuilder& build, const Config& config, const std::string& name, bool text);
  at::Tensor finish(const Stream& stream, const at::Tensor& x, const at::Tensor& attended,
                    const std::vector<at::Tensor>& mod) const;
  double eps_;
  int64_t heads_;
  bool fused_;
  Stream img_, txt_;
};

/// Attention and MLP side by side, on text and image together.
class SingleBlock final : public Block {
 public:
  SingleBlock(ModelBuilder& build, const Config& config, int64_t index);
  std::vector<at::Tensor> forward(const Flow& flow) override;

 private:
  double eps_;
  int64_t heads_, hidden_, mlp_hidden_;
  bool fused_;
  Linear in_, out_;
  ParameterPtr norm_q_, norm_k_;
};

}  // namespace trainer::flux2
