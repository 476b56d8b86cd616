#include <plugin/registry.hpp>

#include <stdexcept>

namespace trainer::plugin {
namespace {

template <typename Part>
void stage(Parts<Part>& staged, const Parts<Part>& present, const char* kind, Part component) {
  const std::string name = component.name;
  if (name.empty() || component.create == nullptr)
    throw std::runtime_error(std::string("registered a ") + kind + " without a name or a factory");
  if (present.contains(name) || !staged.emplace(name, std::move(component)).second)
    throw std::runtime_error(std::string("the ") + kind + " name \"" + name + "\" is taken");
}

template <typename Part>
void list(std::vector<std::string>& names, const Parts<Part>& parts, const std::string& kind) {
  for (const auto& [name, part] : parts) names.push_back(kind + " " + name);
}

}  // namespace

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  list(names, adapters, "adapter");
  list(names, autoencoders, "autoencoder");
  list(names, memory, "memory");
  list(names, models, "model");
  list(names, objectives, "objective");
  list(names, placements, "placement");
  list(names, text_encoders, "text_encoder");
  return names;
}

void StagedRegistrar::add(ModelComponent part) { stage(staged_.models, present_.models, "model", std::move(part)); }
void StagedRegistrar::add(TextEncoderComponent part) {
  stage(staged_.text_encoders, present_.text_encoders, "text encoder", std::move(part));
}
void StagedRegistrar::add(AutoencoderComponent part) {
  stage(staged_.autoencoders, present_.autoencoders, "autoencoder", std::move(part));
}
void StagedRegistrar::add(ObjectiveComponent part) {
  stage(staged_.objectives, present_.objectives, "objective", std::move(part));
}
void StagedRegistrar::add(AdapterComponent part) {
  stage(staged_.adapters, present_.adapters, "adapter", std::move(part));
}
void StagedRegistrar::add(MemoryComponent part) {
  stage(staged_.memory, present_.memory, "memory strategy", std::move(part));
}
void StagedRegistrar::add(PlacementComponent part) {
  stage(staged_.placements, present_.placements, "placement", std::move(part));
}

void StagedRegistrar::merge_into(Registry& registry) {
  registry.models.merge(staged_.models);
  registry.text_encoders.merge(staged_.text_encoders);
  registry.autoencoders.merge(staged_.autoencoders);
  registry.objectives.merge(staged_.objectives);
  registry.adapters.merge(staged_.adapters);
  registry.memory.merge(staged_.memory);
  registry.placements.merge(staged_.placements);
}

}  // namespace trainer::plugin
