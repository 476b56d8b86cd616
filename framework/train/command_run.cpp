/// @file `trainer run RECIPE`: cache, sample, train, sample, export.
#include <train/commands.hpp>
#include <train/run.hpp>

namespace trainer::train {

int command_run(const Request& request) {
  Assembly assembly(request);
  Run run(assembly, request);
  run.prepare();
  if (!run.train()) return static_cast<int>(ExitCode::preempted);
  run.finish();
  return static_cast<int>(ExitCode::done);
}

int command_cache(const Request& request) {
  Assembly assembly(request);
  metrics::Console console({.terminal = metrics::stderr_is_terminal()});
  const Prepared prepared = prepare(assembly, console);
  std::printf("%zu pictures; made %lld latents and %lld text embeddings, the rest was cached in %s\n", prepared.pictures,
              static_cast<long long>(prepared.latents_made), static_cast<long long>(prepared.captions_made),
              assembly.recipe().cache.folder.c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::train
