/// @file `trainer run RECIPE`: cache, sample, train, sample, export; `trainer cache RECIPE`: its first part.
#include <base/log.hpp>
#include <checkpoint/signals.hpp>
#include <distributed/environment.hpp>
#include <distributed/group.hpp>
#include <engine/commands.hpp>
#include <identity/same_run.hpp>
#include <nlohmann/json.hpp>
#include <run/run.hpp>

#include <algorithm>
#include <chrono>
#include <optional>

namespace trainer::engine {

namespace {

/// This process among those that a launcher started together; only rank 0 speaks to the user, but for errors.
struct Member {
  explicit Member(const CacheRequest& asked)
      : request(asked), place(distributed::find_place()), quiet(asked.quiet || place.rank != 0) {
    if (place.rank != 0) set_log_level(LogLevel::error);
  }
  /// First of all, so that whatever is wrong with one rank ends all at once. A rank that could not even read its recipe
  /// joins to say so; it waits less for the others, which may have the same to say to nobody.
  distributed::Group join() const {
    const std::chrono::seconds timeout(request.timeout);
    if (!request.failure) return {place, timeout};
    std::optional<distributed::Group> ranks;
    try {
      ranks.emplace(place, std::min(timeout, kPatience));
    } catch (const Error&) {
      throw request.failure->context("rank " + std::to_string(place.rank));
    }
    ranks->together([this] { throw *request.failure; });
    throw *request.failure;
  }
  static constexpr std::chrono::seconds kPatience{30};
  const CacheRequest& request;
  distributed::Place place;
  bool quiet;
};

/// The recipe; with --resume-with checkpoint, where it differs from the checkpoint's in what is trained, the latter.
recipe::Recipe resumed_recipe(const RunRequest& request, const plugin::Loader& plugins) {
  recipe::Recipe recipe = recipe_of(request, plugins);
  if (request.resume_with != "checkpoint") return recipe;
  const auto overrides = identity::overrides_to_checkpoint(recipe, plugins.found(), request.resume);
  if (overrides.empty()) return recipe;
  recipe = recipe::changed(recipe, overrides, plugin::schemas(plugins.found()));
  log_warning(identity::gone_on_as_checkpoint(overrides));
  return recipe;
}

}  // namespace

int command_run(const RunRequest& request) {
  const Member member(request);
  distributed::Group ranks = member.join();
  ExitCode end = ExitCode::preempted;
  const run::RunOptions options{request.resume, request.resume_with, request.profile,
                                request.json,   member.quiet,        request.libraries};
  ranks.together([&] {
    identity::require_named_checkpoint(request.resume);  // before the folder of the run is made
    plugin::Loader plugins = assembly::open_plugins(request.plugins);
    assembly::Assembly assembly(resumed_recipe(member.request, plugins), plugins, request.libraries, member.place);
    run::Run run(assembly, options, ranks);
    run.prepare();
    if (!run.train()) return;
    if (run.finish()) end = ExitCode::done;
  });
  return static_cast<int>(end);
}

int command_cache(const CacheRequest& request) {
  const Member member(request);
  distributed::Group ranks = member.join();
  metrics::Console console(preparation::console_options(member.quiet));
  checkpoint::catch_stop_signals();
  preparation::Prepared prepared;
  std::string folder;
  ranks.together([&] {
    plugin::Loader plugins = assembly::open_plugins(request.plugins);
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
