/// @file The oracle: what autograd saves in every block, listed by an engine of its own and counted by an allocator,
/// against what the recompute engine reports to keep; and the graph of a recompute against that of a plain run.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <adapter/inject.hpp>
#include <algorithm>
#include <assembly/model_builder.hpp>
#include <execution/keyed_random.hpp>
#include <optional>
#include <planner/byte_counter.hpp>
#include <recipe/default_options.hpp>
#include <save_list.hpp>
#include <support/components.hpp>
#include <trainer/sdk/recompute.hpp>

#include "saved_tensors.hpp"
#include "subjects.hpp"

namespace trainer::equivalence {
namespace {

using test::SavedTensor;
using test::SavedTensors;

/// How every block is run.
struct How {
  std::string name;
  bool recompute = false, elide = false;
  std::vector<std::string> save = {};
};
const std::vector<How>& ways() {
  static const std::vector<How> list{{"none"},
                                     {"full", true},
                                     {"full + elide", true, true},
                                     {"attention", true, false, {"attention"}},
                                     {"attention + elide", true, true, {"attention"}},
                                     {"every_second_matmul", true, false, {"every_second_matmul"}},
                                     {"matmul", true, false, {"matmul"}},
                                     {"matmul + elide", true, true, {"matmul"}}};
  return list;
}

/// What one block kept in forward, and what its recompute's graph saved in backward (or its forward's, without one).
struct BlockReading {
  std::string type;
  int64_t allocated = 0;   ///< bytes that the run of the block left alive, its outputs left out
  int64_t saved_new = 0;   ///< of storages that autograd saved and that were made in the block, outputs left out
  int64_t saved_flow = 0;  ///< of the flow's tensors that autograd saved
  std::vector<SavedTensor> graph;
  int64_t input_bytes = 0, kept_bytes = 0;  ///< as the engine reports them
};

/// Lists the graph that the recompute of a block makes.
class Reader final : public WeightResidency {
 public:
  explicit Reader(std::vector<BlockReading>& readings) : readings_(readings) {}
  void plan(std::span<Block* const>) override {}
  void before(const Site&, Pass pass) override {
    if (pass == Pass::backward) list_.emplace();
  }
  void after(const Site& site, Pass pass) noexcept override {
    if (pass != Pass::backward) return;
    readings_[static_cast<std::size_t>(site.index)].graph = list_->list();
    list_.reset();
  }

 private:
  std::vector<BlockReading>& readings_;
  std::optional<SavedTensors> list_;
};

Options default_options(const std::string& model) {
  for (const plugin::Manifest& manifest : loader().found().manifests)
    if (manifest.schema.kind == "model" && manifest.schema.name == model)
      return recipe::default_options(manifest.schema);
  return {model, {}};
}

class Oracle {
 public:
  explicit Oracle(const prove::Setting& setting) : source_(setting.subject.open()) {
    const std::string& name = setting.subject.component;
    assembly::BuildOptions options;
    options.dtype = setting.dtype;
    options.trained = setting.trained == prove::Trained::all;
    builder_.emplace(*source_, options);
    options_ = default_options(name);
    model_ = loader().registry().models.at(name).create({options_, *source_, setting.subject.config, *builder_});
    if (options.trained) {
      trained_ = assembly::trained_parameters(builder_->inventory());
    } else {
      lora_ = testing::lora();
      trained_ =
          adapter::inject(*lora_, adapter::targeted(*lora_, *model_, builder_->inventory().linears), 1, at::kCPU);
    }
    const auto objective = testing::flow_matching();
    prove::RandomBatches data(prove::shapes_of(*model_, *objective, {}), 2, 1, at::kCPU, 1);
    example_ = objective->prepare(data.batch(0, 0), *model_, execution::KeyedRandom(1));
  }

  /// The second step run in this way, block by block; the first one verifies and finds dead values.
  std::vector<BlockReading> read(const How& how) {
    RecomputeState state;
    std::vector<BlockReading> readings(model_->blocks().size());
    std::optional<selective::SaveList> save;
    if (!how.save.empty()) save.emplace(how.save);
    for (int step = 0; step < 2; ++step) {
      Reader reader(readings);
      const planner::PeakMark counter(at::kCPU);
      Flow flow = model_->prologue(example_.inputs);
      for (std::size_t i = 0; i < readings.size(); ++i) {
        BlockRun run;
        run.site = {model_->blocks()[i], static_cast<int64_t>(i), static_cast<int64_t>(readings.size()), 0};
        run.options = {.recompute = how.recompute, .save = save ? &*save : nullptr, .elide = how.elide};
        if (how.recompute) run.residency = &reader;
        run.state = &state;
        run_one(*model_->blocks()[i], run, flow, counter, readings[i]);
        if (!how.recompute) continue;
        readings[i].input_bytes = state.input_bytes.at(readings[i].type);
        if (state.reports.contains(readings[i].type))
          readings[i].kept_bytes = state.reports.at(readings[i].type).kept_bytes;
      }
      model_->epilogue(flow).sum().backward();
      for (Parameter* parameter : trained_) parameter->value().mutable_grad().reset();
    }
    return readings;
  }

 private:
  static void run_one(Block& block, const BlockRun& run, Flow& flow, const planner::PeakMark& counter,
                      BlockReading& reading) {
    std::vector<at::Tensor> given = flow.carried;
    given.insert(given.end(), flow.shared.begin(), flow.shared.end());
    std::vector<at::Tensor> existing = given;
    for (const Parameter* parameter : block.trainable()) existing.push_back(parameter->value());
    for (const ParameterPtr& parameter : block.info().parameters) existing.push_back(parameter->value());
    const int64_t before = counter.held();
    const SavedTensors saved;
    flow.carried = run_block(block, flow, run);
    reading.type = block.info().type;
    reading.allocated = counter.held() - before;
    for (const at::Tensor& output : flow.carried) {
      const bool known = std::any_of(existing.begin(), existing.end(), [&](const at::Tensor& tensor) {
        return tensor.defined() && tensor.is_alias_of(output);
      });
      if (!known) reading.allocated -= static_cast<int64_t>(output.storage().nbytes());
      existing.push_back(output);
    }
    reading.saved_new = saved.bytes_besides(existing);
    reading.saved_flow = saved.bytes_among(given);
    if (!run.options.recompute) reading.graph = saved.list();
  }

  std::shared_ptr<WeightSource> source_;
  Options options_;
  std::optional<assembly::SourceBuilder> builder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Adapter> lora_;
  std::vector<Parameter*> trained_;
  Example example_;
};

/// Placeholders without data and scalars that a recomputed block's node holds, bytes.
constexpr int64_t kSmall = 64;

/// An input is a view of the outer graph in a plain run, and a leaf in a recompute: both stand for the same tensor.
std::vector<SavedTensor> comparable(std::vector<SavedTensor> list) {
  for (SavedTensor& saved : list)
    if (saved.producer == "leaf" || saved.producer == "ViewBackward0" || saved.producer == "AliasBackward0")
      saved.producer = "input or view";
  return list;
}

class Saved : public ::testing::TestWithParam<prove::Setting> {};

/// The listing is complete: what a plain block leaves allocated is what autograd saved, to the byte.
TEST_P(Saved, PlainBlocksKeepWhatAutogradLists) {
  Oracle oracle(GetParam());
  for (const BlockReading& block : oracle.read(ways().front())) {
    EXPECT_GT(block.saved_new, 0) << block.type;
    EXPECT_EQ(block.allocated, block.saved_new) << block.type;
    for (const SavedTensor& saved : block.graph) EXPECT_FALSE(saved.producer.empty()) << saved.shape;
  }
}

/// A recomputed block saves its flow, and keeps what the engine reports besides, and nothing else.
TEST_P(Saved, RecomputedBlocksKeepWhatTheEngineReports) {
  Oracle oracle(GetParam());
  bool has_attention = false;
  for (const BlockReading& block : oracle.read(ways().front()))
    for (const SavedTensor& saved : block.graph)
      has_attention = has_attention || saved.producer.find("ScaledDotProduct") != std::string::npos;
  for (const How& how : ways()) {
    if (!how.recompute) continue;
    int64_t kept = 0;
    for (const BlockReading& block : oracle.read(how)) {
      const std::string where = how.name + ", " + block.type;
      EXPECT_EQ(block.saved_new, 0) << where;
      EXPECT_EQ(block.saved_flow, block.input_bytes) << where;
      EXPECT_GE(block.allocated, block.kept_bytes) << where;
      EXPECT_LE(block.allocated, block.kept_bytes + kSmall) << where;
      kept += block.kept_bytes;
    }
    const bool attention_alone = how.save == std::vector<std::string>{"attention"};
    EXPECT_EQ(kept > 0, attention_alone ? has_attention : !how.save.empty()) << how.name;
  }
}

/// Whatever is kept or elided, backward runs through the graph of a plain run: same tensors saved by same producers.
TEST_P(Saved, TheRecomputesGraphIsThePlainOne) {
  Oracle oracle(GetParam());
  const std::vector<BlockReading> plain = oracle.read(ways().front());
  for (const How& how : ways()) {
    const std::vector<BlockReading> again = oracle.read(how);
    for (std::size_t i = 0; i < plain.size(); ++i)
      EXPECT_EQ(comparable(again[i].graph), comparable(plain[i].graph)) << how.name << ", block " << i;
  }
}

std::vector<prove::Setting> saved_settings() {
  std::vector<prove::Setting> list;
  for (const prove::Subject& subject : subjects()) {
    // The diffusion models whose every block runs in every step.
    if (objective_of(subject) != "flow_matching" || subject.component == "experts") continue;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const prove::Trained trained : {prove::Trained::default_targets, prove::Trained::all})
        list.push_back({subject, dtype, trained, 1});
  }
  return list;
}
INSTANTIATE_TEST_SUITE_P(All, Saved, ::testing::ValuesIn(saved_settings()), [](const auto& info) {
  std::string name = prove::text_of(info.param);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
});

}  // namespace
}  // namespace trainer::equivalence

int main(int argc, char** argv) {
  trainer::planner::install_byte_counter();
  trainer::test::install_listing_engine();  // before any graph, for the life of the process
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
