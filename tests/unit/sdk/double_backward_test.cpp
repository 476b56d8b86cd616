/// @file The double-backward bug (diffusers issue 12776) in each of its forms: a trained tensor that all blocks read
/// reaches a recomputed block past its flow. With recomputation by hidden inputs its gradient would be lost without a
/// word, so the first run must refuse it, naming block and tensor; the raw tensor in Flow::shared must be bit-equal.
#include <ATen/TensorOperators.h>
#include <ATen/ops/silu.h>

#include <tuple>

#include "toy.hpp"

namespace trainer::test {
namespace {

/// How the modulation reaches a block.
enum class Form { shared, tuple, capture, member, cached_every_time, cached_once, kwargs };
constexpr Form kForms[] = {Form::shared,      Form::tuple, Form::capture, Form::member, Form::cached_every_time,
                           Form::cached_once, Form::kwargs};

struct Case {
  Form form;
  Outer outer;
};
std::string text_of(const Case& one) {
  const char* const names[] = {"Shared", "Tuple", "Capture", "Member", "CachedEveryTime", "CachedOnce", "Kwargs"};
  return std::string(names[static_cast<int>(one.form)]) + (one.outer == Outer::linear ? "Linear" : "AddOnly");
}
void PrintTo(const Case& one, std::ostream* out) { *out << text_of(one); }

/// A toy whose blocks read the modulation in one of the forms.
class Hidden {
 public:
  explicit Hidden(const Case& one, at::ScalarType dtype = at::kFloat, int64_t blocks = 4)
      : toy({.dtype = dtype, .blocks = blocks, .outer = one.outer}) {
    toy.share_modulation =
        one.form == Form::shared || one.form == Form::cached_every_time || one.form == Form::cached_once;
    toy.after_prologue = [this, form = one.form](const at::Tensor& mod) { prologue(form, mod); };
    if (one.form == Form::tuple) toy.read_modulation = [this](const Flow&, int64_t) { return std::get<0>(tuple_); };
    if (one.form == Form::member) toy.read_modulation = [this](const Flow&, int64_t) { return member_; };
    if (one.form == Form::kwargs) toy.read_modulation = [this](const Flow&, int64_t) { return kwargs_.at("mod"); };
    // Only the first block makes it; the others find it.
    if (one.form == Form::cached_every_time)
      toy.read_modulation = [this](const Flow& flow, int64_t block) {
        if (block == 0) member_ = at::silu(flow.shared[0]);
        return member_;
      };
    if (one.form == Form::cached_once)
      toy.read_modulation = [this](const Flow& flow, int64_t) {
        if (!member_.defined()) member_ = at::silu(flow.shared[0]);
        return member_;
      };
  }
  Toy toy;

 private:
  void prologue(Form form, const at::Tensor& mod) {
    member_ = at::Tensor();
    if (form == Form::tuple) tuple_ = {mod, 1};
    if (form == Form::member) member_ = mod;
    if (form == Form::kwargs) kwargs_["mod"] = mod;
    if (form == Form::capture) toy.read_modulation = [mod](const Flow&, int64_t) { return mod; };
  }
  std::tuple<at::Tensor, int> tuple_;
  at::Tensor member_;
  std::map<std::string, at::Tensor> kwargs_;
};

class DoubleBackward : public ::testing::TestWithParam<Case> {};
class HiddenModulation : public ::testing::TestWithParam<Case> {};

TEST_P(DoubleBackward, ArbitraryInputOutputAndKwargs) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Hidden hidden(GetParam(), dtype);
    const Outcome plain = hidden.toy.step({});
    RecomputeState sites;
    sites.name_of = [&](const at::Tensor& tensor) { return hidden.toy.name_of(tensor); };
    if (GetParam().form == Form::shared) {
      EXPECT_TRUE(hidden.toy.step(recomputed(&sites)) == plain);
      EXPECT_EQ(sites.signatures.size(), 4U);
      EXPECT_TRUE(hidden.toy.step(recomputed(&sites)) == plain) << "second step, nothing left to verify";
      continue;
    }
    const std::string message = error_of([&] { hidden.toy.step(recomputed(&sites)); });
    // A member that block 0 fills every time is right there and wrong in block 1. One that a block keeps is wrong at
    // once: its second run reads the first one's.
    const std::string block = GetParam().form == Form::cached_every_time ? "block.1" : "block.0";
    EXPECT_NE(message.find("block \"" + block + "\" reads a differentiable tensor that is neither"), std::string::npos)
        << message;
    const bool cached = GetParam().form == Form::cached_every_time || GetParam().form == Form::cached_once;
    // Found depth first: a linear outer part is entered through the last matrix that was used.
    const std::string tensor = cached                                ? "\"shared[0]\", a "
                               : GetParam().outer == Outer::add_only ? "\"table\", a "
                                                                     : ".lora_";
    EXPECT_NE(message.find("it leads to "), std::string::npos);
    EXPECT_NE(message.find(tensor), std::string::npos) << message;
    // Refused, the process goes on: the same step without strategies is what it was.
    EXPECT_TRUE(hidden.toy.step({}) == plain);
  }
}

/// Why the detector is needed: without it nothing fails, and the gradient is wrong.
TEST_P(HiddenModulation, UnverifiedIsSilentlyWrong) {
  Hidden hidden(GetParam());
  const Outcome plain = hidden.toy.step({});
  const Outcome wrong = hidden.toy.step(recomputed());
  EXPECT_TRUE(same_bits(wrong.loss, plain.loss));
  EXPECT_FALSE(same_bits(wrong.grads, plain.grads));
}

std::vector<Case> cases(bool with_shared) {
  std::vector<Case> list;
  for (const Form form : kForms)
    for (const Outer outer : {Outer::linear, Outer::add_only})
      if (with_shared || form != Form::shared) list.push_back({form, outer});
  return list;
}
INSTANTIATE_TEST_SUITE_P(Forms, DoubleBackward, ::testing::ValuesIn(cases(true)),
                         [](const auto& info) { return text_of(info.param); });
INSTANTIATE_TEST_SUITE_P(Forms, HiddenModulation, ::testing::ValuesIn(cases(false)),
                         [](const auto& info) { return text_of(info.param); });

/// A trained leaf itself, read without Block::own.
TEST(HiddenParameter, IsRefusedByName) {
  const ParameterPtr hidden = make_trained("blocks.1.scale", {4}, 3), owned = make_trained("blocks.1.bias", {4}, 4);
  LambdaBlock block("blocks.1", [&](const Flow& flow) {
    return std::vector<at::Tensor>{flow.carried[0] * hidden->get() + owned->get()};
  });
  block.add(owned);
  RecomputeState sites;
  sites.name_of = [&](const at::Tensor& tensor) { return tensor.is_same(hidden->value()) ? hidden->name() : ""; };
  const Flow flow{{data(1, {2, 4})}, {}, {}};
  EXPECT_EQ(
      error_of([&] { run_chain({&block}, flow, recomputed(&sites)); }),
      "block \"blocks.1\" reads a differentiable tensor that is neither in its flow nor one of its parameters: it "
      "leads to \"blocks.1.scale\", a Float tensor [4]. Its gradient would be lost when the block is recomputed. "
      "Pass the tensor through Flow::shared, or register the parameter with Block::own.");
  EXPECT_TRUE(sites.signatures.empty()) << "a refused site is not verified";
  block.add(hidden);
  EXPECT_EQ(error_of([&] { run_chain({&block}, flow, recomputed(&sites)); }), "");
}

/// The same where the block declares nothing that is trained: it would run plainly, its memory unsaved.
TEST(HiddenParameter, IsRefusedInABlockWithoutDeclaredGradients) {
  const ParameterPtr hidden = make_trained("scale", {4}, 3);
  LambdaBlock block("b", [&](const Flow& flow) { return std::vector<at::Tensor>{flow.carried[0] * hidden->get()}; });
  RecomputeState sites;
  const std::string message = error_of([&] { run_chain({&block}, {{data(1, {2, 4})}, {}, {}}, recomputed(&sites)); });
  EXPECT_NE(message.find("block \"b\" reads a differentiable tensor"), std::string::npos) << message;
  EXPECT_NE(message.find("it leads to a Float tensor [4]"), std::string::npos) << message;
}

/// A frozen tensor may be captured: nothing of it is lost.
TEST(HiddenParameter, FrozenCaptureIsFine) {
  const at::Tensor frozen = data(3, {4});
  const ParameterPtr owned = make_trained("bias", {4}, 4);
  LambdaBlock block("b",
                    [&](const Flow& flow) { return std::vector<at::Tensor>{flow.carried[0] * frozen + owned->get()}; });
  block.add(owned);
  RecomputeState sites;
  EXPECT_EQ(error_of([&] { run_chain({&block}, {{data(1, {2, 4})}, {}, {}}, recomputed(&sites)); }), "");
  EXPECT_EQ(sites.signatures.size(), 1U);
}

}  // namespace
}  // namespace trainer::test
