/// @file `trainer run RECIPE`: cache, sample, train, sample, export; `trainer cache RECIPE`: its first part.
#include <base/log.hpp>
#include <checkpoint/signals.hpp>
#include <nlohmann/json.hpp>
#include <train/commands/commands.hpp>
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
  metrics::Console console(console_options(request));
  checkpoint::catch_stop_signals();
  const Prepared prepared = prepare(assembly, console);
  for (const std::string& note : prepared.notes) log_info(note);
  const std::string& folder = assembly.recipe().cache.folder;
  if (request.json)
    std::printf("%s\n", nlohmann::ordered_json{{"pictures", prepared.pictures},
                                               {"latents_made", prepared.latents_made},
                                               {"captions_made", prepared.captions_made},
                                               {"folder", folder}}
                            .dump(2)
                            .c_str());
  else
    std::printf("%zu pictures; made %lld latents and %lld text embeddings, the rest was cached in %s\n",
                prepared.pictures, static_cast<long long>(prepared.latents_made),
                static_cast<long long>(prepared.captions_made), folder.c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::train
