/// @file The pass of captions through the language model.
#include "encoder.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <trainer/sdk/error.hpp>
#include <utility>

namespace trainer::mistral {

namespace {

/// Changes when the same tokens give other numbers; part of cache keys.
constexpr int kModelVersion = 1;

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string shown(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

std::vector<int64_t> read_layers(const Options& options, const LmConfig& config) {
  const std::string key = "\"" + options.section() + ".layers\"";
  std::vector<int64_t> layers = options.list<int64_t>("layers");
  if (layers.empty()) throw Error(ExitCode::bad_recipe, key + " is empty; name at least one hidden state");
  for (const int64_t layer : layers)
    // The state after the last layer is normalised in transformers and means something else: not offered.
    if (layer < 0 || layer >= config.layers)
      throw Error(ExitCode::bad_recipe, key + " has " + std::to_string(layer) + ", but this text encoder has " +
                                            std::to_string(config.layers) + " layers: give numbers from 0 to " +
                                            std::to_string(config.layers - 1));
  return layers;
}

EncoderOptions read_options(const Options& options, const LmConfig& config) {
  EncoderOptions read;
  read.style.family = config.family;
  read.style.max_tokens = options.get<int64_t>("max_tokens");
  read.micro_batch = options.get<int64_t>("micro_batch");
  for (const auto& [key, value] : {std::pair("max_tokens", read.style.max_tokens), {"micro_batch", read.micro_batch}})
    if (value < 1)
      throw Error(ExitCode::bad_recipe,
                  "\"" + options.section() + "." + key + "\" is " + std::to_string(value) + ", expected 1 or more");
  if (config.family == Family::mistral) {
    const auto message = options.get<std::string>("system_message");
    if (message != "newline" && message != "space")
      throw Error(ExitCode::bad_recipe, "\"" + options.section() + ".system_message\" is \"" + message +
                                            "\", expected \"newline\" or \"space\"");
    read.style.newline = message == "newline";
  }
  read.layers = read_layers(options, config);
  return read;
}

/// Where the rows of one caption are during the pass. Left padding sees no key, so that its state depends on neither
/// caption nor position: one row stands for all of it.
struct Place {
  std::size_t group = 0;
  Span span;
};

struct Pass {
  std::vector<Place> captions;
  std::optional<Place> left_pad;
  std::vector<Rows> groups;
  std::vector<std::vector<int64_t>> ids;  ///< per group, one token id a row
};

class Layout {
 public:
  Layout(Pass& pass, int64_t micro_batch) : pass_(pass), micro_batch_(static_cast<std::size_t>(micro_batch)) {}
  Place add(std::span<const int64_t> ids, int64_t first_position, int64_t keys) {
    if (pass_.groups.empty() || pass_.groups.back().spans.size() >= micro_batch_) {
      pass_.groups.emplace_back();
      pass_.ids.emplace_back();
    }
    std::vector<int64_t>& rows = pass_.ids.back();
    const Span span{static_cast<int64_t>(rows.size()), static_cast<int64_t>(ids.size()), first_position, keys};
    rows.insert(rows.end(), ids.begin(), ids.end());
    pass_.groups.back().spans.push_back(span);
    return {pass_.groups.size() - 1, span};
  }

 private:
  Pass& pass_;
  std::size_t micro_batch_;
};

Pass lay_out(const std::vector<Tokens>& captions, const EncoderOptions& options) {
  Pass pass;
  Layout layout(pass, options.micro_batch);
  const bool left = options.style.family == Family::mistral;
  for (const Tokens& tokens : captions) {
    const std::span<const int64_t> ids(tokens.ids);
    const auto first = static_cast<std::size_t>(tokens.first);
    pass.captions.push_back(left ? layout.add(ids.subspan(first), tokens.first, tokens.count)
                                 : layout.add(ids, 0, tokens.count));
  }
  const auto padded = std::find_if(captions.begin(), captions.end(), [](const Tokens& t) { return t.first > 0; });
  if (left && padded != captions.end()) pass.left_pad = layout.add(std::span(padded->ids).first(1), 0, 0);
  return pass;
}

void embed(Pass& pass, const CausalLm& model, at::Device device) {
  std::set<int64_t> distinct;
  for (const std::vector<int64_t>& ids : pass.ids) distinct.insert(ids.begin(), ids.end());
  const std::vector<int64_t> sorted(distinct.begin(), distinct.end());
  const at::Tensor table = model.embeddings(sorted);
  for (std::size_t g = 0; g < pass.groups.size(); ++g) {
    std::vector<int64_t> index;
    for (const int64_t id : pass.ids[g])
      index.push_back(std::lower_bound(sorted.begin(), sorted.end(), id) - sorted.begin());
    pass.groups[g].states = table.index_select(0, at::tensor(index, at::kLong).to(device));
  }
}

at::Tensor states_of(const Pass& pass, const Place& at) {
  return pass.groups[at.group].states.narrow(0, at.span.begin, at.span.rows);
}

/// Copies the present states into columns [slot * hidden, ...) of every caption's result.
void tap(const Pass& pass, int64_t slot, int64_t hidden, std::vector<NamedTensors>& results) {
  for (std::size_t c = 0; c < results.size(); ++c) {
    const at::Tensor out = results[c].at("prompt_embeds").narrow(1, slot * hidden, hidden);
    const Span& span = pass.captions[c].span;
    out.narrow(0, span.first_position, span.rows).copy_(states_of(pass, pass.captions[c]));
    if (span.first_position > 0) out.narrow(0, 0, span.first_position).copy_(states_of(pass, *pass.left_pad));
  }
}

}  // namespace

LmEncoder::LmEncoder(const EncoderContext& context, Family family)
    : LmEncoder(context, read_config(context.config, family)) {}

LmEncoder::LmEncoder(const EncoderContext& context, const LmConfig& config)
    : config_(config),
      options_(read_options(context.options, config)),
      model_(config, context.weights, *std::max_element(options_.layers.begin(), options_.layers.end()),
             options_.style.max_tokens, context.dtype, context.device),
      tokenizer_(context.tokenizer),
      source_(context.weights->describe()),
      dtype_(context.dtype),
      device_(context.device) {
  if (!tokenizer_)
    throw Error(ExitCode::bad_recipe,
                "text encoder \"" + std::string(name_of(config_.family)) +
                    "\" needs a tokenizer: set text_encoder.tokenizer to the folder of tokenizer.json");
  check_tokenizer(options_.style, *tokenizer_);
}

std::vector<NamedTensors> LmEncoder::encode(std::span<const std::string> captions) {
  const c10::AutoGradMode no_grad(false);
  std::vector<NamedTensors> results;
  if (captions.empty()) return results;
  std::vector<Tokens> tokens;
  const auto width = static_cast<int64_t>(options_.layers.size()) * config_.hidden;
  // Results are the host's, but in a dry run there is nothing to copy to it.
  const at::TensorOptions result = at::TensorOptions(dtype_).device(device_.is_meta() ? device_ : at::Device(at::kCPU));
  for (const std::string& caption : captions) {
    tokens.push_back(tokenize_caption(caption, options_.style, *tokenizer_));
    results.push_back({{"prompt_embeds", at::empty({options_.style.max_tokens, width}, result)}});
  }
  if (const std::string cut = cut_captions(captions, tokens, options_.style.max_tokens); !cut.empty()) TORCH_WARN(cut);
  Pass pass = lay_out(tokens, options_);
  embed(pass, model_, device_);
  const int64_t last = *std::max_element(options_.layers.begin(), options_.layers.end());
  for (int64_t done = 0; done <= last; ++done) {
    if (done > 0) model_.run_layer(done - 1, pass.groups);
    for (std::size_t slot = 0; slot < options_.layers.size(); ++slot)
      if (options_.layers[slot] == done) tap(pass, static_cast<int64_t>(slot), config_.hidden, results);
  }
  return results;
}

std::string LmEncoder::identity() const {
  const PromptStyle& style = options_.style;
  std::string text = std::string(name_of(config_.family)) + " template " + std::to_string(kTemplateVersion);
  if (config_.family == Family::mistral) text += style.newline ? " newline" : " space";
  return text + "; model " + std::to_string(kModelVersion) + "; tokens " + std::to_string(style.max_tokens) +
         "; layers " + joined(options_.layers) + "; heads " + std::to_string(config_.heads) + "/" +
         std::to_string(config_.kv_heads) + "; eps " + shown(config_.eps) + "; theta " + shown(config_.rope_theta) +
         "; " + c10::toString(dtype_);
}

std::string LmEncoder::describe() const {
  return std::string(name_of(config_.family)) + " text encoder, hidden states " + joined(options_.layers) + " of " +
         std::to_string(config_.layers) + " layers, width " + std::to_string(config_.hidden) + ", " +
         std::to_string(options_.style.max_tokens) + " tokens, " + c10::toString(dtype_) + " on " + device_.str() +
         ", streamed from " + source_;
}

}  // namespace trainer::mistral
