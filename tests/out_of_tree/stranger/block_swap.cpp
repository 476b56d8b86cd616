/// @file Block swap: all frozen weights of the blocks rest in one arena; a ring of a few slots is what computations
/// read. Before a block runs its weights are copied into a slot, unless they are still in one: after a forward the last
/// blocks are, so the backward begins with them. A slot that is given up is filled with NaN, and a weight without a
/// slot reads as NaN: whoever computes with a weight outside its block's run is found out.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <trainer/sdk/plugin.hpp>

#include <algorithm>
#include <cstring>

namespace {

using namespace trainer;

/// All bits set is NaN in every floating dtype, fp8 included.
constexpr int kNotANumber = 0xFF;
constexpr std::size_t kAlignment = 64;  // as LibTorch's own allocations: kernels choose their route by it

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Bytes that tensors are laid over; lives as long as the last of them. In a dry run it only counts.
class Arena {
 public:
  Arena(std::size_t bytes, at::Device device)
      : bytes_(at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device))) {
    poison();
  }
  /// A tensor like `like` over the bytes from `offset`.
  [[nodiscard]] at::Tensor over(const at::Tensor& like, std::size_t offset) const {
    const at::Tensor part = bytes_.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(like.nbytes()));
    if (bytes_.is_meta()) return part.view(like.scalar_type()).as_strided(like.sizes(), like.strides());
    return at::from_blob(
        data() + offset, like.sizes(), like.strides(), [keep = bytes_](void*) {}, like.options());
  }
  void poison() const noexcept {
    if (!bytes_.is_meta()) std::memset(data(), kNotANumber, static_cast<std::size_t>(bytes_.numel()));
  }
  [[nodiscard]] char* data() const { return static_cast<char*>(bytes_.mutable_data_ptr()); }

 private:
  at::Tensor bytes_;
};

/// One tensor of a packed or dense weight: where it rests, and at which place of a slot it is used.
struct Piece {
  std::shared_ptr<FrozenWeight> owner;
  at::Tensor* tensor = nullptr;
  at::Tensor master;
  std::size_t offset = 0;
};

struct Load {
  std::vector<Piece> pieces;
  std::size_t bytes = 0;
  int64_t slot = -1;
};

struct Slot {
  Arena arena;
  Load* load = nullptr;
  int64_t used_by = 0;    ///< runs that need it now
  int64_t last_use = -1;  ///< a counter, for the choice of what is given up
};

class Ring final : public WeightResidency {
 public:
  explicit Ring(int64_t slots) : wanted_slots_(slots) {}

  void plan(std::span<Block* const> blocks) override {
    slots_.clear();
    device_ = at::kCPU;
    loads_.assign(blocks.size(), {});
    std::size_t total = 0, largest = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      gather(*blocks[i], loads_[i]);
      total += loads_[i].bytes;
      largest = std::max(largest, loads_[i].bytes);
    }
    const Arena master(total, device_);
    nowhere_ = std::make_unique<Arena>(largest, device_);
    std::size_t offset = 0;
    for (Load& load : loads_) {
      for (Piece& piece : load.pieces) {
        piece.master = master.over(*piece.tensor, offset + piece.offset);
        piece.master.copy_(*piece.tensor);
        *piece.tensor = nowhere_->over(piece.master, piece.offset);
      }
      offset += load.bytes;
    }
    for (int64_t i = 0; i < wanted_slots_; ++i) slots_.push_back({Arena(largest, device_)});
  }

  void before(const Site& site, Pass) override {
    Load& load = loads_.at(static_cast<std::size_t>(site.index));
    if (load.slot < 0) bring(load);
    Slot& slot = slots_[static_cast<std::size_t>(load.slot)];
    ++slot.used_by;
    slot.last_use = ++clock_;
  }

  void after(const Site& site, Pass) noexcept override {
    --slots_[static_cast<std::size_t>(loads_[static_cast<std::size_t>(site.index)].slot)].used_by;
  }

 private:
  void gather(const Block& block, Load& load) {
    for (const Linear& linear : block.info().linears) {
      if (!linear.state().frozen) continue;
      for (at::Tensor* tensor : linear.state().frozen->tensors()) {
        if (!(tensor->is_cpu() || tensor->is_meta()) || !tensor->is_non_overlapping_and_dense())
          throw Error(ExitCode::bad_recipe,
                      "memory.block_swap: the weight of \"" + linear.name() + "\" is no dense tensor in host memory");
        if (tensor->is_meta()) device_ = tensor->device();
        load.pieces.push_back({linear.state().frozen, tensor, {}, load.bytes});
        load.bytes += aligned(tensor->nbytes());
      }
    }
  }

  void bring(Load& load) {
    Slot& slot = free_slot();
    if (slot.load != nullptr) {
      slot.load->slot = -1;
      for (const Piece& piece : slot.load->pieces) *piece.tensor = nowhere_->over(piece.master, piece.offset);
      slot.arena.poison();
    }
    slot.load = &load;
    load.slot = &slot - slots_.data();
    for (const Piece& piece : load.pieces) {
      *piece.tensor = slot.arena.over(piece.master, piece.offset);
      if (!piece.master.is_meta())
        std::memcpy(slot.arena.data() + piece.offset, piece.master.const_data_ptr(), piece.master.nbytes());
    }
  }

  /// The slot that was not used for longest.
  Slot& free_slot() {
    Slot* oldest = nullptr;
    for (Slot& slot : slots_)
      if (slot.used_by == 0 && (oldest == nullptr || slot.last_use < oldest->last_use)) oldest = &slot;
    if (oldest == nullptr)
      throw Error(ExitCode::bad_recipe, "memory.block_swap.slots: " + std::to_string(slots_.size()) +
                                            " are too few, more blocks are in use at once");
    return *oldest;
  }

  int64_t wanted_slots_, clock_ = 0;
  at::Device device_ = at::kCPU;  ///< of the arenas: where the weights are
  std::vector<Load> loads_;       ///< one a block
  std::vector<Slot> slots_;
  std::unique_ptr<Arena> nowhere_;  ///< what a weight without a slot reads
};

class BlockSwap final : public MemoryStrategy {
 public:
  explicit BlockSwap(const Options& options) : ring_(options.get<int64_t>("slots")) {}
  WeightResidency* weight_residency() override { return &ring_; }

 private:
  Ring ring_;
};

void init(Registrar& registrar) {
  registrar.add(MemoryComponent{"block_swap", [](const Options& options) -> std::unique_ptr<MemoryStrategy> {
                                  return std::make_unique<BlockSwap>(options);
                                }});
}

}  // namespace

TRAINER_PLUGIN("block_swap", "0.1.0", init)
