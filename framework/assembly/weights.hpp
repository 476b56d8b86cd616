/// @file Where the values of a model's weights come from.
#pragma once

namespace trainer::assembly {

enum class Weights {
  none,    ///< nowhere: headers alone, for names, shapes and the placement
  shapes,  ///< nowhere: tensors on dry devices, which hold no values
  random,  ///< keyed random numbers in the shapes of the file
  file,    ///< the file
};

}  // namespace trainer::assembly
