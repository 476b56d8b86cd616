/// @file What the words of a recipe become, all together: plugins opened on demand, components, weights.
#pragma once

#include <assembly/components.hpp>
#include <assembly/encoders.hpp>
#include <assembly/model_loader.hpp>
#include <assembly/strategies.hpp>

namespace trainer::assembly {

/// This process's share of every step. Throws Error (bad_recipe) when the batch cannot be shared out among so many, or
/// several processes cannot train as the recipe says.
distributed::Share share_of(const recipe::Recipe& recipe, const distributed::Place& place);

/// Matrix products from now on come from the library of train.matmul.
void use_matmul(const recipe::Train& train);

/// The parts of one recipe. Later members borrow from earlier ones.
struct Assembly {
  /// Opens the devices; opens no plugin yet. `plugins` are borrowed. Throws Error as Devices and share_of do.
  Assembly(recipe::Recipe recipe, plugin::Loader& plugins, const Libraries& libraries,
           const distributed::Place& place = {});
  /// On shapes alone: opens no device, for one of `ranks` processes.
  Assembly(recipe::Recipe recipe, plugin::Loader& plugins, int ranks = 1);
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  const recipe::Recipe recipe;
  const distributed::Share share;
  const Devices devices;
  Components components;
  Encoders encoders;
  Strategies strategies;
  ModelLoader models;
};

}  // namespace trainer::assembly
