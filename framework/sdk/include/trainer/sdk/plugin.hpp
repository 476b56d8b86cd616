/// @file What a plugin's main source includes. It defines one exported constant; nothing runs at load time. Operators
/// are registered inside `init` with a torch::Library object, never by a static TORCH_LIBRARY (a clash there ends the
/// process from inside dlopen).
#pragma once

#include <trainer/sdk/fingerprint.hpp>
#include <trainer/sdk/registrar.hpp>

#define TRAINER_PLUGIN_AS(NAME, VERSION, FINGERPRINT, INIT)                                    \
  extern "C" TRAINER_API const trainer_plugin_v1 trainer_plugin;                               \
  const trainer_plugin_v1 trainer_plugin = {                                                   \
      TRAINER_PLUGIN_MAGIC, sizeof(trainer_plugin_v1), TRAINER_API_MAJOR, TRAINER_API_MINOR,   \
      NAME, VERSION, FINGERPRINT,                                                              \
      [](void* registrar) { INIT(*static_cast<::trainer::Registrar*>(registrar)); }};
/// TRAINER_PLUGIN("flux2", "0.1.0", init) with `void init(trainer::Registrar&)`.
#define TRAINER_PLUGIN(NAME, VERSION, INIT) TRAINER_PLUGIN_AS(NAME, VERSION, TRAINER_SDK_FINGERPRINT, INIT)
