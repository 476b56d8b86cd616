/// @file A model cut short: its prologue, the first and the last block of each type, its epilogue. What `trainer prove`
/// runs, so that a model of 32 B parameters is proven with the weights of four blocks.
#pragma once

#include <assembly/model_builder.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace trainer::assembly {

/// The first and the last block of each type in the order of the chain, among those that `wanted` accepts where a type
/// has such blocks (null: all). `type_of`: what counts as a type; null: BlockInfo::type.
std::vector<Block*> ends_of_types(std::span<Block* const> blocks,
                                  const std::function<bool(const Block&)>& wanted = nullptr,
                                  const std::function<std::string(const Block&)>& type_of = nullptr);

/// The layers and parameters of `all` that belong to one of `kept` or to no block of `chain` (prologue and epilogue).
Inventory part_of(const Inventory& all, std::span<Block* const> chain, std::span<Block* const> kept);

/// Which blocks of each type stand for all.
struct Cut {
  /// What makes a type beside BlockInfo::type: the way in which a plan runs the block. Empty: nothing.
  std::function<std::string(const Block&)> way_of{};
};
/// The first and the last block of each type, of those that own a layer of `adapted` where a type has such blocks.
std::vector<Block*> kept_blocks(Model& model, std::span<const Linear> adapted, const Cut& cut);

/// Leaves of `layers` those that are among `present`.
void keep_only(std::vector<Linear>& layers, std::span<const Linear> present);

/// Looks like `whole` with fewer blocks.
class CutModel final : public Model {
 public:
  CutModel(std::unique_ptr<Model> whole, std::vector<Block*> kept);
  [[nodiscard]] std::vector<InputSpec> inputs() const override { return whole_->inputs(); }
  Flow prologue(const NamedTensors& inputs) override { return whole_->prologue(inputs); }
  std::span<Block* const> blocks() override { return kept_; }
  at::Tensor epilogue(const Flow& flow) override { return whole_->epilogue(flow); }
  at::Tensor epilogue_slice(const Flow& flow, int64_t begin, int64_t end) override {
    return whole_->epilogue_slice(flow, begin, end);
  }
  [[nodiscard]] const DiffusionTraits* diffusion() const override { return whole_->diffusion(); }
  [[nodiscard]] std::optional<std::vector<std::string>> epilogue_layers() const override {
    return whole_->epilogue_layers();
  }
  [[nodiscard]] std::vector<std::string> default_targets() const override { return whole_->default_targets(); }
  [[nodiscard]] std::string describe() const override { return whole_->describe(); }

 private:
  std::unique_ptr<Model> whole_;
  std::vector<Block*> kept_;
};

}  // namespace trainer::assembly
