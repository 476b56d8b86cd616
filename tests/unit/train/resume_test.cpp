/// @file Going on from a checkpoint: N + M steps equal N steps, save, fresh objects, load, M steps, bit for bit.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <trainer/sdk/error.hpp>

#include "toy_run.hpp"

namespace trainer::execution {
namespace {

namespace fs = std::filesystem;

class Resume : public ::testing::Test {
 protected:
  Resume() {
    std::string name = (fs::temp_directory_path() / "trainer-resume-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~Resume() override { fs::remove_all(folder_); }

  static checkpoint::Progress progress(int64_t step) {
    checkpoint::Progress made;
    made.step = step;
    made.threads = 3;
    made.loss = {0.98, 0.1 + 0.2, 1.0 / 3};
    made.recipe = "[run]\nname = \"é \\\" x\"\n";
    return made;
  }
  void save(ToyRun& run) {
    checkpoint::Store store(folder_, "id");
    store.save(run.trainer->steps_done(), checkpoint::capture(run.live(), progress(run.trainer->steps_done())), {});
  }
  [[nodiscard]] checkpoint::Loaded newest() const {
    std::vector<std::string> notes;
    return checkpoint::Store(folder_, "id").newest(notes).value();
  }
  /// What `restore` says about a changed checkpoint.
  static std::string refusal(checkpoint::Loaded loaded, ToyRun& run) {
    loaded.folder = "CK";
    try {
      checkpoint::Live live = run.live();
      checkpoint::restore(loaded, live);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      return error.what();
    }
    return "no error";
  }
  static void expect_same_state(ToyRun& one, ToyRun& two) {
    const checkpoint::Content a = checkpoint::capture(one.live(), progress(1)),
                              b = checkpoint::capture(two.live(), progress(1));
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (const auto& [name, tensor] : a.tensors) EXPECT_TRUE(test::same_bits(tensor, b.tensors.at(name))) << name;
  }

  fs::path folder_;
};

TEST_F(Resume, EqualsTheUninterruptedRunBitForBit) {
  for (const bool full : {false, true})
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::string(full ? "full " : "lora ") + (recompute ? "recompute" : "plain"));
      fs::remove_all(folder_ / "ckpt");
      const ToyHow how{.recompute = recompute, .full = full};
      ToyRun whole(how), first(how);
      const std::vector<double> losses = whole.train_to(9);
      first.train_to(4);
      save(first);
      const checkpoint::Loaded loaded = newest();
      ToyRun second(how, checkpoint::read_progress(loaded).step);
      checkpoint::Live live = second.live();
      checkpoint::restore(loaded, live);
      expect_same_state(first, second);
      EXPECT_EQ(second.train_to(9), std::vector<double>(losses.begin() + 4, losses.end()));
      expect_same_state(whole, second);
    }
}

TEST_F(Resume, StateHoldsParametersMomentsAndAverage) {
  ToyRun run;
  run.train_to(2);
  const checkpoint::Content content = checkpoint::capture(run.live(), progress(2));
  EXPECT_EQ(content.tensors.size(), run.trained.size() * 5 + 1) << "value, two moments, step and average each; updates";
  for (const char* name : {"param.block.0.up.lora_A.weight", "optim.block.0.up.lora_A.weight.exp_avg",
                           "optim.block.0.up.lora_A.weight.exp_avg_sq", "optim.block.0.up.lora_A.weight.step",
                           "average.block.0.up.lora_A.weight.ema", "average.ema.updates"})
    EXPECT_TRUE(content.tensors.contains(name)) << name;
  for (const auto& [name, tensor] : content.tensors) EXPECT_FALSE(tensor.requires_grad()) << name;
}

TEST_F(Resume, ProgressGoesRoundExactly) {
  ToyRun run;
  run.train_to(1);
  save(run);
  const checkpoint::Progress read = checkpoint::read_progress(newest()), expected = progress(1);
  EXPECT_EQ(read.step, 1);
  EXPECT_EQ(read.threads, 3);
  EXPECT_EQ(read.loss.smoothing, expected.loss.smoothing);
  EXPECT_EQ(read.loss.sum, expected.loss.sum);
  EXPECT_EQ(read.loss.weight, expected.loss.weight);
  EXPECT_EQ(read.recipe, expected.recipe);
}

TEST_F(Resume, BrokenProgressIsRefused) {
  ToyRun run;
  run.train_to(1);
  save(run);
  checkpoint::Loaded loaded = newest();
  loaded.folder = "CK";
  const auto message = [&](const std::string& state) {
    loaded.content.state = state;
    try {
      (void)checkpoint::read_progress(loaded);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::bad_input);
      EXPECT_EQ(error.code(), "CKPT_STATE");
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const std::string good = loaded.content.state;
  std::string other_step = good;
  other_step.replace(other_step.find("\"step\": 1"), 9, "\"step\": 2");
  EXPECT_EQ(message(other_step), "CK/state.json: state and manifest name different steps");
  EXPECT_EQ(message("{"), "CK/state.json: is no JSON object");
  EXPECT_EQ(message("[]"), "CK/state.json: is no JSON object");
  EXPECT_EQ(message("{\"step\": 1}"), "CK/state.json: \"threads\" is no whole number of 1 to 1024");
  const auto with = [&](const std::string& key, const std::string& value) {
    nlohmann::json state = nlohmann::json::parse(good);
    state[nlohmann::json::json_pointer(key)] = nlohmann::json::parse(value);
    return message(state.dump());
  };
  for (const char* threads : {"100000", "1025", "0", "-3", "1.5", "1.0", "4294967297", "18446744073709551615", "1e3",
                              "\"3\"", "null", "true"})
    EXPECT_EQ(with("/threads", threads), "CK/state.json: \"threads\" is no whole number of 1 to 1024") << threads;
  for (const char* threads : {"1", "1024"}) EXPECT_EQ(with("/threads", threads), "no error") << threads;
  for (const char* step : {"1.5", "-1", "18446744073709551615"})
    EXPECT_NE(with("/step", step).find("\"step\" is no whole number"), std::string::npos) << step;
  EXPECT_EQ(with("/loss", "3"), "CK/state.json: \"loss\" is no object");
  EXPECT_EQ(with("/loss/sum", "\"3\""), "CK/state.json: \"loss.sum\" is no number");
  EXPECT_EQ(with("/recipe", "3"), "CK/state.json: \"recipe\" is no text");
}

TEST_F(Resume, OtherTensorsThanThisRunsAreRefused) {
  ToyRun run;
  run.train_to(1);
  save(run);
  const checkpoint::Loaded loaded = newest();
  const std::string a = "block.0.up.lora_A.weight";
  checkpoint::Loaded shape = loaded, fewer = loaded, other = loaded, moments = loaded, foreign = loaded;
  shape.content.tensors["param." + a] = at::zeros({4, 7});
  fewer.content.tensors.erase("param." + a);
  other.content.tensors.erase("param." + a);
  other.content.tensors["param.other"] = at::zeros({1});
  moments.content.tensors.erase("optim." + a + ".exp_avg");
  foreign.content.tensors["rng.state"] = at::zeros({1});
  EXPECT_EQ(refusal(shape, run), "checkpoint CK: \"" + a + "\" has another shape or dtype than in this run");
  EXPECT_EQ(refusal(fewer, run), "checkpoint CK: it holds 7 trained tensors, this run has 8");
  EXPECT_EQ(refusal(other, run), "checkpoint CK: it lacks the trained tensor \"" + a + "\"");
  EXPECT_EQ(refusal(moments, run), "checkpoint CK: the optimiser state lacks \"" + a + ".exp_avg\"");
  EXPECT_EQ(refusal(foreign, run), "checkpoint CK: it holds \"rng.state\", for which this run has no place");
  ToyRun without_average({.ema = 0});
  EXPECT_EQ(refusal(loaded, without_average),
            "checkpoint CK: it holds \"average.block.0.down.lora_A.weight.ema\", for which this run has no place");
}

}  // namespace
}  // namespace trainer::execution
