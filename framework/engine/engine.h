/* The engine's only exported function. C, so that the front needs neither LibTorch nor the engine's types.
   `request` is a JSON object; its keys are written by cli/engine_loader.cpp and read by assembly/request.cpp. */
#ifndef TRAINER_ENGINE_H
#define TRAINER_ENGINE_H
#ifdef __cplusplus
extern "C" {
#endif

/* `version`: the front's; must equal the engine's. `command`: run, check, cache, sample, inspect, plugins_check, doctor.
   Returns the program's exit code; results on stdout, progress and errors on stderr; never throws. Call once per
   process. */
int trainer_engine_call(const char *version, const char *command, const char *request);

typedef int (*trainer_engine_function)(const char *version, const char *command, const char *request);

#ifdef __cplusplus
}
#endif
#endif
