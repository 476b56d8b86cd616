/// @file The models of the equivalence matrix, and the loader that holds them with all strategies of the build.
#pragma once

#include <prove/axes.hpp>

#include <vector>

namespace trainer::equivalence {

/// Built-in components, the conformance model, and the plugins of `folders` and of TRAINER_TEST_PLUGINS.
plugin::Loader make_loader(std::vector<plugin::SearchFolder> folders);
/// Without further folders; one per process.
plugin::Loader& loader();

/// Every model of a loader: flux2 on the parity directories, each other as the miniature that it offers of itself.
struct Models {
  std::vector<prove::Subject> subjects;
  std::vector<std::string> missing;  ///< "model X has no subject: why"; each is a failing cell
};
Models models_of(plugin::Loader& loader);

/// Of `loader()`: the conformance model, those of tests/out_of_tree, flux2.
const Models& models();
inline const std::vector<prove::Subject>& subjects() { return models().subjects; }
/// The one of this name.
const prove::Subject& subject_named(const std::string& name);

/// Name of the objective that trains it.
std::string objective_of(const prove::Subject& subject);

/// What of a subject is trained and how: with each adapter of `loader()` and all of it, for its objective.
std::vector<prove::Setting> settings_of(const prove::Subject& subject);

/// The settings of the matrices, of all subjects: all of them, or in the quick form a quarter, in which every two of
/// subject, dtype, what is trained and micro-batches still meet.
std::vector<prove::Setting> matrix_settings(bool whole);

/// Every subset of `all`, in the order of prove::check_subsets.
std::vector<std::vector<std::string>> subsets(const std::vector<std::string>& all);

/// What a subset of the strategies (as joined in a row) may come to. Not equal are: two strategies that want one place,
/// packed weights that are trained, and a store with nothing to store. Anything else that is refused is a defect.
prove::Row::Verdict expected(const prove::Setting& setting, const std::string& subset);

/// A setting's text in letters and digits: names an instance of a gtest suite.
std::string word_of(const prove::Setting& setting);

}  // namespace trainer::equivalence
