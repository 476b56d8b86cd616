/// @file `trainer run RECIPE`. host.cpp is the host loop: read it first.
#pragma once

#include <assembly/device.hpp>
#include <distributed/group.hpp>
#include <plugin/loader.hpp>
#include <recipe/resolved.hpp>

#include <optional>

namespace trainer::host {

/// Every command gets this.
struct Request {
  assembly::Libraries libraries;
  std::filesystem::path images;  ///< library that reads and writes pictures
  std::vector<plugin::SearchFolder> plugins;
  bool json = false;   ///< results as JSON on stdout
  bool quiet = false;  ///< warnings and errors only
};

/// Commands that take a recipe get this.
struct RecipeRequest : Request {
  recipe::Resolved recipe;
};
/// Checks the recipe that a request carries. Throws Error (bad_recipe).
recipe::Recipe recipe_of(const RecipeRequest& request, const plugin::Loader& plugins);

/// Commands that several processes run together get this.
struct RankedRequest : RecipeRequest {
  int64_t timeout = 600;         ///< distributed.timeout in seconds, as far as the recipe could be read
  std::optional<Error> failure;  ///< what is wrong with this rank's recipe or files: there is no recipe then
};

struct RunRequest : RankedRequest {
  std::string resume = "auto";  ///< auto, never, required or a checkpoint folder
  std::string resume_with;      ///< which side wins where recipe and checkpoint differ: "recipe", "checkpoint" or ""
  int64_t profile = 0;          ///< steps to profile
};

/// This process among those that a launcher started together. Only rank 0 speaks to the user, but for errors.
struct Member {
  explicit Member(const RankedRequest& request);  ///< borrowed
  /// Joins the others, first of all: whatever is wrong with one rank ends all at once. A rank that could not read its
  /// recipe joins to say so. Throws Error.
  [[nodiscard]] distributed::Group join() const;

  const RankedRequest& request;
  distributed::Place place;
  bool quiet;
};

/// The recipe of the request. With --resume-with checkpoint, it is that of the checkpoint where the two differ in what
/// is trained. Throws Error.
recipe::Recipe resumed_recipe(const RunRequest& request, const plugin::Loader& plugins);

/// Trains the recipe to its last step and leaves the results. Collective. Returns false when a signal ended it before:
/// the state is saved then, and the same command continues. Throws Error.
bool run_recipe(const RunRequest& request, const Member& member, distributed::Group& ranks);

}  // namespace trainer::host
