#include <assembly/assemble.hpp>
#include <matmul/matmul.hpp>

namespace trainer::assembly {
namespace {

distributed::Place first_of(int ranks) {
  distributed::Place place;
  place.size = ranks;
  return place;
}

}  // namespace

distributed::Share share_of(const recipe::Recipe& recipe, const distributed::Place& place) {
  if (!place.alone() && recipe.optimizer.fused_backward)
    throw Error(ExitCode::bad_recipe,
                recipe.file + ": optimizer.fused_backward: parameters are updated before the gradients of the other " +
                    std::to_string(place.size - 1) + " ranks are known; leave it out, or start one process");
  try {
    return distributed::share_of(recipe.train.batch_size, recipe.train.micro_batch_size, place.rank, place.size);
  } catch (const Error& error) {
    throw error.context(recipe.file);
  }
}

void use_matmul(const recipe::Train& train) {
  matmul::use(train.matmul == "auto"     ? matmul::suited()
              : train.matmul == "onednn" ? matmul::Library::onednn
                                         : matmul::Library::mkl);
}

Assembly::Assembly(recipe::Recipe made, plugin::Loader& plugins, const Libraries& libraries,
                   const distributed::Place& place)
    : recipe(std::move(made)),
      share(share_of(recipe, place)),
      devices(recipe, plugins.folders(), libraries, place),
      components(recipe, plugins, devices),
      encoders(components),
      strategies(components),
      models(components, model_spec(components, share)) {
  use_matmul(recipe.train);
}

Assembly::Assembly(recipe::Recipe made, plugin::Loader& plugins, int ranks)
    : recipe(std::move(made)),
      share(share_of(recipe, first_of(ranks))),
      devices(recipe, plugins.folders()),
      components(recipe, plugins, devices),
      encoders(components),
      strategies(components),
      models(components, model_spec(components, share)) {
  use_matmul(recipe.train);
}

}  // namespace trainer::assembly
