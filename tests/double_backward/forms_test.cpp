/// @file The double-backward bug (diffusers issue 12776) in each of its forms: a trained tensor that all blocks read
/// reaches a recomputed block past its flow. With recomputation by hidden inputs its gradient would be lost without a
/// word, so the first run must refuse it, naming block and tensor; the raw tensor in Flow::shared must be bit-equal.
/// The same forms in PyTorch: pytorch_forms.py; the story: docs/double-backward.md.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>

#include <tuple>
#include <unit/sdk/toy.hpp>

namespace trainer::test {
namespace {

/// How the modulation reaches a block. Names as in pytorch_forms.py and in the table of docs/double-backward.md.
enum class Form { argument, tuple, keyword, capture, member, earlier_block, made_once };
constexpr const char* kNames[] = {"Argument", "Tuple", "Keyword", "Capture", "Member", "EarlierBlock", "MadeOnce"};

struct Case {
  Form form;
  Outer outer;
};
std::string text_of(const Case& one) {
  return std::string(kNames[static_cast<int>(one.form)]) + (one.outer == Outer::linear ? "Linear" : "AddOnly");
}
void PrintTo(const Case& one, std::ostream* out) { *out << text_of(one); }

/// A toy whose blocks read the modulation in one of the forms.
class Hidden {
 public:
  explicit Hidden(const Case& one, at::ScalarType dtype = at::kFloat, bool input_grad = false)
      : toy({.dtype = dtype, .blocks = 4, .outer = one.outer, .input_grad = input_grad}) {
    toy.share_modulation = one.form == Form::argument || one.form == Form::earlier_block || one.form == Form::made_once;
    toy.after_prologue = [this, form = one.form](const at::Tensor& mod) { prologue(form, mod); };
    if (one.form == Form::tuple) toy.read_modulation = [this](const Flow&, int64_t) { return std::get<0>(tuple_); };
    if (one.form == Form::member) toy.read_modulation = [this](const Flow&, int64_t) { return member_; };
    if (one.form == Form::keyword) toy.read_modulation = [this](const Flow&, int64_t) { return keywords_.at("mod"); };
    // Only the first block makes it, every time it runs; the others find it.
    if (one.form == Form::earlier_block)
      toy.read_modulation = [this](const Flow& flow, int64_t block) {
        if (block == 0) member_ = at::silu(flow.shared[0]);
        return member_;
      };
    if (one.form == Form::made_once)
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
    if (form == Form::keyword) keywords_["mod"] = mod;
    if (form == Form::capture) toy.read_modulation = [mod](const Flow&, int64_t) { return mod; };
  }
  std::tuple<at::Tensor, int> tuple_;
  at::Tensor member_;
  std::map<std::string, at::Tensor> keywords_;
};

/// Around a step: dtype, whether the chain's input needs a gradient, backwards of one graph, and whether the step runs
/// inside a hook of another backward (which makes the engine of autograd reentrant).
struct Around {
  at::ScalarType dtype;
  bool input_grad;
  int backwards;
  bool reentrant;
};
std::vector<Around> surroundings() {
  std::vector<Around> list;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const bool input_grad : {false, true})
      for (const int backwards : {1, 2})
        for (const bool reentrant : {false, true}) list.push_back({dtype, input_grad, backwards, reentrant});
  return list;
}
std::string text_of(const Around& around) {
  return std::string(c10::toString(around.dtype)) + (around.input_grad ? ", input with gradient, " : ", ") +
         std::to_string(around.backwards) + (around.reentrant ? " backwards, reentrant" : " backwards");
}

void run(const Around& around, const std::function<void()>& step) {
  if (!around.reentrant) return step();
  int hooks = 0;
  const at::Tensor outer = at::ones({1}).requires_grad_() * 2;
  outer.register_hook([&](const at::Tensor&) {
    const at::AutoGradMode on(true);
    ++hooks;
    step();
  });
  outer.sum().backward();
  ASSERT_EQ(hooks, 1);
}

class EqualToTheBit : public ::testing::TestWithParam<Case> {};
class RefusedByName : public ::testing::TestWithParam<Case> {};
class HiddenModulation : public ::testing::TestWithParam<Case> {};

TEST_P(EqualToTheBit, ArbitraryInputOutput) {
  for (const Around& around : surroundings()) {
    SCOPED_TRACE(text_of(around));
    Hidden hidden(GetParam(), around.dtype, around.input_grad);
    const Outcome plain = hidden.toy.step({}, around.backwards);
    for (const at::Tensor& grad : plain.grads) ASSERT_TRUE(grad.defined() && grad.count_nonzero().item<int64_t>() > 0);
    run(around, [&] {
      RecomputeState sites;
      EXPECT_TRUE(hidden.toy.step(recomputed(&sites), around.backwards) == plain);
      EXPECT_EQ(sites.signatures.size(), 4U);
      EXPECT_TRUE(hidden.toy.step(recomputed(&sites), around.backwards) == plain)
          << "second step, nothing left to verify";
    });
  }
}

TEST_P(RefusedByName, ArbitraryInputOutputAndKwargs) {
  const auto [form, outer] = GetParam();
  const bool made = form == Form::earlier_block || form == Form::made_once;
  // A member that block 0 fills every time is right there and wrong in block 1. One that a block keeps is wrong at
  // once: its second run reads the first one's.
  const std::string block = form == Form::earlier_block ? "block.1" : "block.0";
  // Found depth first: a linear outer part is entered through the last matrix that was used.
  const std::string tensor = made ? "\"shared[0]\", a " : outer == Outer::add_only ? "\"table\", a " : ".lora_";
  for (const Around& around : surroundings()) {
    SCOPED_TRACE(text_of(around));
    Hidden hidden(GetParam(), around.dtype, around.input_grad);
    const Outcome plain = hidden.toy.step({}, around.backwards);
    run(around, [&] {
      RecomputeState sites;
      sites.name_of = [&](const at::Tensor& one) { return hidden.toy.name_of(one); };
      const std::string message = error_of([&] { hidden.toy.step(recomputed(&sites), around.backwards); });
      EXPECT_NE(message.find("block \"" + block + "\" reads a differentiable tensor that is neither"),
                std::string::npos)
          << message;
      EXPECT_NE(message.find("it leads to "), std::string::npos) << message;
      EXPECT_NE(message.find(tensor), std::string::npos) << message;
      // Refused, the process goes on: the same step without strategies is what it was.
      EXPECT_TRUE(hidden.toy.step({}, around.backwards) == plain);
    });
  }
}

/// Why the detector is needed: without it nothing fails, and the gradient is wrong.
TEST_P(HiddenModulation, UnverifiedIsSilentlyWrong) {
  for (const Around& around : surroundings()) {
    SCOPED_TRACE(text_of(around));
    Hidden hidden(GetParam(), around.dtype, around.input_grad);
    const Outcome plain = hidden.toy.step({}, around.backwards);
    run(around, [&] {
      const Outcome wrong = hidden.toy.step(recomputed(), around.backwards);
      EXPECT_TRUE(same_bits(wrong.loss, plain.loss));
      EXPECT_FALSE(same_bits(wrong.grads, plain.grads));
    });
  }
}

std::vector<Case> cases(bool hidden) {
  std::vector<Case> list;
  for (int form = 0; form < static_cast<int>(std::size(kNames)); ++form)
    for (const Outer outer : {Outer::linear, Outer::add_only})
      if (hidden == (static_cast<Form>(form) != Form::argument)) list.push_back({static_cast<Form>(form), outer});
  return list;
}
const auto name = [](const auto& info) { return text_of(info.param); };
INSTANTIATE_TEST_SUITE_P(Forms, EqualToTheBit, ::testing::ValuesIn(cases(false)), name);
INSTANTIATE_TEST_SUITE_P(Forms, RefusedByName, ::testing::ValuesIn(cases(true)), name);
INSTANTIATE_TEST_SUITE_P(Forms, HiddenModulation, ::testing::ValuesIn(cases(true)), name);

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
