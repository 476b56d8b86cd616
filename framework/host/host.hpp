/// @file `trainer run RECIPE`. host.cpp is the host loop: read it first.
#pragma once

#include <assembly/assemble.hpp>
#include <distributed/group.hpp>

#include <memory>

namespace trainer::host {

/// This process among those that a launcher started together. Only rank 0 speaks to the user, but for errors.
struct Member {
  explicit Member(const assembly::Request& asked);
  /// Joins the others, first of all: whatever is wrong with one rank ends all at once. A rank that could not read its
  /// recipe joins to say so. Throws Error.
  [[nodiscard]] distributed::Group join() const;

  assembly::Request request;
  distributed::Place place;
};

/// The recipe's objects. With --resume-with checkpoint, the recipe is that of the checkpoint where the two differ in
/// what is trained. Throws Error.
std::unique_ptr<assembly::Assembly> resumed_assembly(const Member& member);

/// Trains the recipe to its last step and leaves the results. Collective. Returns false when a signal ended it before:
/// the state is saved then, and the same command continues. Throws Error.
bool run_recipe(const Member& member, distributed::Group& ranks);

}  // namespace trainer::host
