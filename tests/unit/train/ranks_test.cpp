// Several ranks train the toy model, a thread each: what comes out does not depend on how many there are.
#include "toy_run.hpp"

#include <gtest/gtest.h>
#include <support/groups.hpp>

#include <ATen/ops/equal.h>
#include <distributed/share.hpp>
#include <mutex>

namespace trainer::execution {
namespace {

using distributed::Group;
using distributed::Share;
using distributed::testing::message_of;
using distributed::testing::run_ranks;

class OwnShare final : public BatchSource {
 public:
  OwnShare(ToyData& all, const Share& share) : all_(all), share_(share) {}
  [[nodiscard]] int64_t micro_batches() const override { return share_.micro_batches; }
  Batch batch(int64_t step, int64_t micro) override { return all_.batch(step, share_.first_micro_batch + micro); }
  [[nodiscard]] std::vector<std::string> files(int64_t step, int64_t micro) const override {
    return all_.files(step, share_.first_micro_batch + micro);
  }

 private:
  ToyData& all_;
  Share share_;
};

struct Outcome {
  std::vector<double> losses;
  NamedTensors values;
};

/// Six steps of four samples each, one a micro-batch.
Outcome train(Group& group, int64_t poisoned = -1) {
  ToyRun run({.per_step = 4, .micro = 1});
  run.data.poisoned = poisoned;
  const Share share = distributed::share_of(4, 1, group.rank(), group.size());
  OwnShare data(run.data, share);
  const PlacementPlan placement = testing::one_device(run.model.blocks().size(), share.micro_batches);
  const optim::LrSchedule schedule{"cosine", 1e-2, 2, 20};
  Trainer trainer(Parts{run.model, run.objective, run.memory, placement, run.random, data, *run.optimizer, &*run.ema,
                        schedule, 1.0, "model and objective", nullptr, &group},
                  0);
  Outcome outcome;
  trainer.fit(6, [&](const StepReport& report) {
    outcome.losses.push_back(report.loss);
    return true;
  });
  outcome.values = run.values();
  return outcome;
}

TEST(Ranks, LossesDoNotDependOnTheirNumberAndAllHoldTheSameBits) {
  const Outcome one = train(Group::alone());
  for (const int ranks : {2, 4}) {
    std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
    const auto problems = run_ranks(ranks, std::chrono::seconds(60), [&](Group& group) {
      outcomes[static_cast<std::size_t>(group.rank())] = train(group);
    });
    for (const auto& problem : problems) ASSERT_FALSE(problem) << message_of(problem);
    for (const Outcome& outcome : outcomes) {
      ASSERT_EQ(outcome.losses, outcomes[0].losses);
      for (const auto& [name, value] : outcome.values)
        EXPECT_TRUE(at::equal(value, outcomes[0].values.at(name))) << name;
    }
    for (std::size_t step = 0; step < one.losses.size(); ++step)
      EXPECT_NEAR(outcomes[0].losses[step] / one.losses[step], 1, 1e-5) << ranks << " ranks, step " << step;
  }
}

TEST(Ranks, ALossThatIsNotFiniteIsToldByItsRankAndNamedByTheOthers) {
  // Sample 9 is the second of step 3: rank 0's of two, rank 1's of four.
  for (const auto& [ranks, owner] : {std::pair{2, 0}, std::pair{4, 1}}) {
    const auto problems = run_ranks(ranks, std::chrono::seconds(60), [](Group& group) { train(group, 9); });
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string text = message_of(problems[static_cast<std::size_t>(rank)]);
      const std::string start = "rank " + std::to_string(rank) + ": step 3: ";
      EXPECT_EQ(text.find(start), 0U) << text;
      if (rank == owner)
        EXPECT_NE(text.find("files: picture-9.png"), std::string::npos) << text;
      else
        EXPECT_NE(text.find("the loss of rank " + std::to_string(owner) + " became nan"), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace trainer::execution
