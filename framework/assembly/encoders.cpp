#include <assembly/encoders.hpp>
#include <planner/shape_source.hpp>

namespace trainer::assembly {
namespace {

std::shared_ptr<weights::ModelFiles> open_files(const std::string& path, const std::string& component) {
  if (path.empty()) return nullptr;
  return weights::ModelFiles::open(path, {.component = component});
}

/// Every text has as many tokens, and no vocabulary is read.
class LongestText final : public Tokenizer {
 public:
  explicit LongestText(std::optional<int64_t> tokens) : tokens_(tokens) {}
  [[nodiscard]] std::vector<int64_t> encode(std::string_view) const override {
    guessed_ = !tokens_;
    return std::vector<int64_t>(static_cast<std::size_t>(tokens_.value_or(kUsualTokens)), 0);
  }
  [[nodiscard]] std::optional<int64_t> id(std::string_view) const override { return 0; }
  [[nodiscard]] bool guessed() const { return guessed_; }

 private:
  static constexpr int64_t kUsualTokens = 512;
  std::optional<int64_t> tokens_;
  mutable bool guessed_ = false;
};

}  // namespace

std::shared_ptr<weights::ModelFiles> Encoders::text_encoder_files() {
  return open_files(components_.recipe().text_encoder.path, "text_encoder");
}

std::shared_ptr<weights::ModelFiles> Encoders::autoencoder_files() {
  return open_files(components_.recipe().autoencoder.path, "vae");
}

std::shared_ptr<text::SdkTokenizer> Encoders::tokenizer() {
  const std::string& file = components_.recipe().text_encoder.tokenizer;
  return file.empty() ? nullptr : text::SdkTokenizer::load(file);
}

EncoderContext Encoders::context(const recipe::Component& component, std::shared_ptr<weights::ModelFiles> files,
                                 Weights weights) const {
  const std::string config = files == nullptr ? "" : files->config().value_or("");
  const Devices& devices = components_.devices();
  const at::Device device = devices.of(component);
  const bool dry = weights == Weights::shapes;
  std::shared_ptr<WeightSource> source = files;
  if (dry && files != nullptr) source = planner::shapes_of(std::move(files), devices.dry(at::kCPU));
  EncoderContext context{component.options, std::move(source), config, nullptr};
  context.dtype = dtype_of(component.dtype);
  context.device = dry ? devices.dry(device) : device;
  return context;
}

std::unique_ptr<TextEncoder> Encoders::text_encoder(Weights weights) {
  if (weights == Weights::shapes) return text_encoder_on_shapes().encoder;
  EncoderContext made = context(components_.recipe().text_encoder, text_encoder_files(), weights);
  made.tokenizer = tokenizer();
  return components_.text_encoder(made);
}

Encoders::OnShapes Encoders::text_encoder_on_shapes() {
  EncoderContext made = context(components_.recipe().text_encoder, text_encoder_files(), Weights::shapes);
  const auto texts = std::make_shared<LongestText>(longest_text());
  made.tokenizer = texts;
  return {components_.text_encoder(made), [texts] { return texts->guessed(); }};
}

std::optional<int64_t> Encoders::longest_text() const {
  const Table& values = components_.recipe().text_encoder.options.values();
  const auto it = values.find("max_tokens");
  if (it == values.end() || it->second.get_if<int64_t>() == nullptr) return std::nullopt;
  return *it->second.get_if<int64_t>();
}

std::unique_ptr<Autoencoder> Encoders::autoencoder(Weights weights) {
  return components_.autoencoder(context(components_.recipe().autoencoder, autoencoder_files(), weights));
}

int64_t Encoders::spatial_factor() {
  try {
    return autoencoder(Weights::shapes)->spatial_factor();
  } catch (const std::exception&) {  // it reads values of its weights, or cannot be made at all, which is reported now
    if (!components_.devices().are_open()) throw;
    return autoencoder()->spatial_factor();
  }
}

}  // namespace trainer::assembly
