/// @file Which blocks are counted as taking part: those that the flow runs and a gradient passes through.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <execution/chain.hpp>
#include <memory>

namespace trainer::execution {
namespace {

/// Runs for flows whose first number is `expert`, or for all.
class Piece final : public Block {
 public:
  Piece(const std::string& name, bool trained, int64_t expert) : Block(name, "piece"), expert_(expert) {
    own(std::make_shared<Parameter>(name + ".weight", at::ones({1}).requires_grad_(trained)));
  }
  [[nodiscard]] bool takes_part(const Flow& flow) const override { return expert_ < 0 || flow.sizes.at(0) == expert_; }
  std::vector<at::Tensor> forward(const Flow& flow) override { return flow.carried; }

 private:
  int64_t expert_;
};

class Pieces final : public Model {
 public:
  /// One block a letter: 'T' trained, 'f' frozen.
  explicit Pieces(const std::string& letters, int64_t experts = 0) {
    for (std::size_t i = 0; i < letters.size(); ++i) {
      const int64_t expert = experts > 0 ? static_cast<int64_t>(i) % experts : -1;
      pieces_.push_back(std::make_unique<Piece>("b." + std::to_string(i), letters[i] == 'T', expert));
      borrowed_.push_back(pieces_.back().get());
    }
  }
  [[nodiscard]] std::vector<InputSpec> inputs() const override { return {}; }
  Flow prologue(const NamedTensors&) override { return {}; }
  std::span<Block* const> blocks() override { return borrowed_; }
  at::Tensor epilogue(const Flow& flow) override { return flow.carried[0]; }
  [[nodiscard]] std::string describe() const override { return "pieces"; }

 private:
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<Block*> borrowed_;
};

Flow flow_of(bool trained, int64_t expert = 0) { return {{at::ones({1}).requires_grad_(trained)}, {}, {expert}}; }

/// The index of every block among those that take part, '-' where it takes none.
std::string places(Pieces model, const Flow& flow) {
  const Chain chain(model, flow, 2);
  std::string text;
  int64_t count = 0;
  for (std::size_t i = 0; i < model.blocks().size(); ++i) {
    EXPECT_EQ(chain.site(i).index, static_cast<int64_t>(i));
    EXPECT_EQ(chain.site(i).count, static_cast<int64_t>(model.blocks().size()));
    EXPECT_EQ(chain.site(i).micro_batch, 2);
    const Site* const part = chain.part(i);
    text += part == nullptr ? "-" : std::to_string(part->index);
    if (part == nullptr) continue;
    EXPECT_EQ(part->block, model.blocks()[i]);
    EXPECT_EQ(part->micro_batch, 2);
    count = part->count;
  }
  EXPECT_EQ(count, std::count_if(text.begin(), text.end(), [](char c) { return c != '-'; }));
  return text;
}

TEST(Chain, CountsWhatAGradientPassesThrough) {
  EXPECT_EQ(places(Pieces("TTTT"), flow_of(false)), "0123");
  EXPECT_EQ(places(Pieces("ffTfT"), flow_of(false)), "--012") << "frozen blocks before the first trained one";
  EXPECT_EQ(places(Pieces("ffTfT"), flow_of(true)), "01234") << "what the prologue made is trained";
  EXPECT_EQ(places(Pieces("fff"), flow_of(false)), "---");
}

TEST(Chain, CountsWhatTheFlowRuns) {
  EXPECT_EQ(places(Pieces("TTTTTT", 2), flow_of(false, 0)), "0-1-2-");
  EXPECT_EQ(places(Pieces("TTTTTT", 2), flow_of(false, 1)), "-0-1-2");
  EXPECT_EQ(places(Pieces("TfffTf", 2), flow_of(false, 1)), "------") << "the other expert's training is not its own";
  EXPECT_EQ(places(Pieces("TfffTf", 2), flow_of(true, 1)), "-0-1-2");
}

TEST(Chain, WithoutGradientsNothingTakesPart) {
  const at::NoGradGuard no_grad;
  EXPECT_EQ(places(Pieces("TTT"), flow_of(true)), "---");
}

}  // namespace
}  // namespace trainer::execution
