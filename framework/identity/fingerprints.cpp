#include <ATen/Parallel.h>
#include <torch/version.h>
#include <assembly/device.hpp>
#include <assembly/processor.hpp>
#include <identity/fingerprints.hpp>
#include <identity/identities.hpp>
#include <matmul/matmul.hpp>

namespace trainer::identity {

Fingerprints::Fingerprints(const assembly::Components& components, const assembly::LoadedModel& model, std::string data,
                           std::string encoders, int processes)
    : components_(components), fixed_(identities_of_weights(components.recipe(), *model.source)) {
  fixed_.insert({{"trainer", TRAINER_VERSION},
                 {"torch", TORCH_VERSION},
                 {"devices", assembly::types_of(components.devices().training())},
                 {"cuda", assembly::cuda_versions(components.devices().training())},
                 {"processes", std::to_string(processes)},
                 {"data", std::move(data)},
                 {"encoders", std::move(encoders)},
                 {"formats", model.memory.format_identity()}});
}

std::map<std::string, std::string> Fingerprints::read() const {
  std::map<std::string, std::string> all = fixed_;
  all["threads"] = std::to_string(at::get_num_threads());
  all["plugins"] = components_.plugins().identity();
  all.merge(assembly::levels_record());
  std::string& products = all["products"];
  products += (products.empty() ? "fp32 by " : ", fp32 by ") + matmul::name_of(matmul::used());
  return all;
}

}  // namespace trainer::identity
