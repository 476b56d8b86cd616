/// @file See subjects.hpp.
#include "subjects.hpp"

#include <prove/conformance_model.hpp>
#include <support/device.hpp>
#include <support/parity.hpp>
#include <support/plugins.hpp>

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>

namespace trainer::equivalence {
namespace {

/// What the matrix trains of one model.
std::vector<prove::Subject> subjects_of(plugin::Loader& loader, const std::string& model) {
  if (!loader.registry().models.contains(model)) loader.require("model", model);
  if (model != "flux2") return {prove::miniature_of(loader, model)};
  std::vector<prove::Subject> list;
  for (const auto& directory : test::parity_dirs()) {
    list.push_back(prove::model_in(loader, model, directory / "model"));
    list.back().name = model + " " + directory.filename().string();
  }
  return list;
}

}  // namespace

plugin::Loader make_loader(std::vector<plugin::SearchFolder> folders) {
  for (plugin::SearchFolder& folder : testing::plugin_folders()) folders.push_back(std::move(folder));
  plugin::Loader made(std::move(folders));
  prove::add_conformance_model(made.registry());
  return made;
}

plugin::Loader& loader() {
  static plugin::Loader instance = make_loader({});
  return instance;
}

Models models_of(plugin::Loader& loader) {
  Models models;
  for (const std::string& name : prove::components(loader, "model")) try {
      for (prove::Subject& subject : subjects_of(loader, name)) models.subjects.push_back(std::move(subject));
    } catch (const std::exception& error) {
      models.missing.push_back("model " + name + " has no subject: " + error.what());
    }
  return models;
}

const Models& models() {
  static const Models all = models_of(loader());
  return all;
}

const prove::Subject& subject_named(const std::string& name) {
  for (const prove::Subject& subject : subjects())
    if (subject.name == name) return subject;
  throw std::runtime_error("no subject " + name);
}

std::string objective_of(const prove::Subject& subject) { return prove::objective_beside(loader(), subject.component); }

std::vector<prove::Setting> settings_of(const prove::Subject& subject) {
  std::vector<prove::Setting> list = prove::settings_of(loader(), subject);
  for (prove::Setting& setting : list) setting.devices = {testing::test_device()};
  return list;
}

std::vector<prove::Setting> matrix_settings(bool whole) {
  std::vector<prove::Setting> list;
  for (std::size_t subject = 0; subject < subjects().size(); ++subject) {
    std::map<std::pair<std::string, prove::Trained>, std::size_t> trained;  // numbered
    for (const prove::Setting& setting : settings_of(subjects()[subject])) {
      const auto number = trained.try_emplace({setting.adapter, setting.trained}, trained.size()).first->second;
      const std::size_t turn = subject + number;
      const at::ScalarType dtype = turn % 2 == 0 ? at::kFloat : at::kBFloat16;
      if (whole || (setting.dtype == dtype && (setting.micro_batches > 1) == (turn / 2 % 2 == 0)))
        list.push_back(setting);
    }
  }
  return list;
}

std::vector<std::vector<std::string>> subsets(const std::vector<std::string>& all) {
  std::vector<std::vector<std::string>> list(std::size_t{1} << all.size());
  for (std::size_t bits = 0; bits < list.size(); ++bits)
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((bits >> i & 1U) != 0) list[bits].push_back(all[i]);
  return list;
}

prove::Row::Verdict expected(const prove::Setting& setting, const std::string& subset) {
  const auto has = [&](const char* name) { return subset.find(name) != std::string::npos; };
  const bool full = has("full_checkpointing"), selective = has("selective_checkpointing");
  if (has("host_offload") && !full && !selective) return prove::Row::idle;
  if (full && selective) return prove::Row::refused;
  if (has("fp8_weight_only") && setting.trained == prove::Trained::all) return prove::Row::refused;
  return prove::Row::equal;
}

std::string word_of(const prove::Setting& setting) {
  std::string name = prove::text_of(setting);
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
}

}  // namespace trainer::equivalence
