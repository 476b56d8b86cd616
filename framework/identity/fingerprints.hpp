/// @file What made a checkpoint: versions, devices, threads, plugins, and hashes of weights and data. A resume compares
/// them.
#pragma once

#include <assembly/model_loader.hpp>

#include <map>
#include <string>

namespace trainer::identity {

class Fingerprints {
 public:
  /// `components` borrowed. `model`: as it was just loaded. `data`, `encoders`: hashes of what it is trained on
  /// (identities.hpp). `processes`: ranks of the run.
  Fingerprints(const assembly::Components& components, const assembly::LoadedModel& model, std::string data,
               std::string encoders, int processes);
  /// As they are now: plugins that open later and threads that change count.
  [[nodiscard]] std::map<std::string, std::string> read() const;

 private:
  const assembly::Components& components_;
  std::map<std::string, std::string> fixed_;
};

}  // namespace trainer::identity
