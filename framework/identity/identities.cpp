#include <base/files.hpp>
#include <base/hash.hpp>
#include <identity/identities.hpp>
#include <weights/model_files.hpp>

#include <filesystem>

namespace trainer::identity {
namespace {

constexpr std::size_t kConfigLimit = std::size_t{16} << 20;

/// The text beside a LoRA that states its scale (peft's); empty for one that says all itself.
std::string text_beside(const weights::ModelFiles& lora) {
  bool peft = false;
  for (const std::string& name : lora.names()) peft = peft || name.starts_with("base_model.model.");
  const std::filesystem::path file = lora.files().front().path().parent_path() / "adapter_config.json";
  return peft && std::filesystem::exists(file) ? read_file(file, kConfigLimit, "adapter_config.json") : "";
}

}  // namespace

std::map<std::string, std::string> identities_of_weights(const recipe::Recipe& recipe, const WeightSource& model) {
  const auto files = weights::ModelFiles::open(recipe.model.path, {.component = "transformer"});
  std::map<std::string, std::string> all{{"model", model.identity()},
                                         {"model_config", xxh128(files->config().value_or(""))}};
  if (!recipe.adapter || recipe.adapter->path.empty()) return all;
  const auto lora = weights::ModelFiles::open(recipe.adapter->path);
  all["start"] = lora->identity();
  all["start_config"] = xxh128(text_beside(*lora));
  return all;
}

}  // namespace trainer::identity
