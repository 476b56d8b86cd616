/// @file `trainer run RECIPE` (host/host.cpp) and `trainer cache RECIPE`, which is its data phase alone.
#include <base/log.hpp>
#include <checkpoint/signals.hpp>
#include <distributed/group.hpp>
#include <engine/commands.hpp>
#include <host/host.hpp>
#include <nlohmann/json.hpp>
#include <preparation/cache_phase.hpp>

#include <cstdio>

namespace trainer::engine {

int command_run(const RunRequest& request) {
  const host::Member member(request);
  distributed::Group ranks = member.join();
  bool done = false;
  ranks.together([&] { done = host::run_recipe(request, member, ranks); });
  return static_cast<int>(done ? ExitCode::done : ExitCode::preempted);
}

int command_cache(const RankedRequest& request) {
  const host::Member member(request);
  distributed::Group ranks = member.join();
  metrics::Console console(preparation::console_options(member.quiet));
  checkpoint::catch_stop_signals();
  preparation::Prepared prepared;
  std::string folder;
  ranks.together([&] {
    plugin::Loader plugins(request.plugins);
    assembly::Assembly assembly(recipe_of(request, plugins), plugins, request.libraries, member.place);
    folder = assembly.recipe.cache.folder;
    preparation::agree(assembly, ranks);
    prepared = preparation::prepare(assembly, console, ranks);
  });
  if (!ranks.writer()) return static_cast<int>(ExitCode::done);
  for (const std::string& note : prepared.notes) log_info(note);
  if (request.json)
    std::printf("%s\n", nlohmann::ordered_json{{"pictures", prepared.pictures + prepared.held_out},
                                               {"latents_made", prepared.latents_made},
                                               {"captions_made", prepared.captions_made},
                                               {"folder", folder}}
                            .dump(2)
                            .c_str());
  else
    std::printf("%zu pictures; made %lld latents and %lld text embeddings, the rest was cached in %s\n",
                prepared.pictures + prepared.held_out, static_cast<long long>(prepared.latents_made),
                static_cast<long long>(prepared.captions_made), folder.c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace trainer::engine
