/// @file Every component that plugins offer, by kind and name.
#pragma once

#include <plugin/guard.hpp>
#include <trainer/sdk/registrar.hpp>

#include <map>
#include <string>
#include <vector>

namespace trainer::plugin {

template <typename Part>
using Parts = std::map<std::string, Part, std::less<>>;

/// What the registered factories are, by name.
struct Registry {
  Parts<ModelComponent> models;
  Parts<TextEncoderComponent> text_encoders;
  Parts<AutoencoderComponent> autoencoders;
  Parts<ObjectiveComponent> objectives;
  Parts<AdapterComponent> adapters;
  Parts<MemoryComponent> memory;
  Parts<PlacementComponent> placements;

  /// "kind name" of everything, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
};

/// Collects what one `init` registers; `merge_into` adds it to the registry, all or nothing.
class StagedRegistrar final : public Registrar {
 public:
  explicit StagedRegistrar(const Registry& present) : present_(present) {}
  void add(ModelComponent component) override;
  void add(TextEncoderComponent component) override;
  void add(AutoencoderComponent component) override;
  void add(ObjectiveComponent component) override;
  void add(AdapterComponent component) override;
  void add(MemoryComponent component) override;
  void add(PlacementComponent component) override;
  [[nodiscard]] std::vector<std::string> names() const { return staged_.names(); }
  void merge_into(Registry& registry);

 private:
  const Registry& present_;
  Registry staged_;
};

}  // namespace trainer::plugin
