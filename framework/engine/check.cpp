/// @file `trainer check RECIPE`: everything that can be known before a run, as one list of findings.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <assembly/assemble.hpp>
#include <base/entries.hpp>
#include <base/files.hpp>
#include <base/log.hpp>
#include <base/printable.hpp>
#include <base/units.hpp>
#include <checkpoint/attempts.hpp>
#include <checkpoint/committed.hpp>
#include <checkpoint/recovery.hpp>
#include <checkpoint/run_lock.hpp>
#include <data/holdout.hpp>
#include <distributed/environment.hpp>
#include <engine/commands.hpp>
#include <identity/identities.hpp>
#include <identity/same_run.hpp>
#include <metrics/meter.hpp>
#include <nlohmann/json.hpp>
#include <planning/device_budgets.hpp>
#include <planning/disk_need.hpp>
#include <planning/placement_report.hpp>
#include <planning/plan.hpp>
#include <planning/recipe_budget.hpp>
#include <preparation/cache_phase.hpp>
#include <recipe/locate.hpp>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

namespace trainer::engine {
namespace {

using Json = nlohmann::ordered_json;

/// A text of several lines, of which none but the first begins where a finding does: names of files in it are anything.
std::string indented(const std::string& text) {
  std::string lines;
  for (const char c : printable_lines(text.ends_with('\n') ? std::string_view(text).substr(0, text.size() - 1) : text))
    lines += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return lines;
}

/// Collects what was found: facts worth knowing and everything that would stop the run.
class Findings {
 public:
  /// Borrowed: says where the keys of messages stand.
  explicit Findings(const recipe::Positions& positions) : positions_(positions) {}
  /// Runs one part of the check; what it throws becomes a finding (false), and the next part runs all the same.
  bool part(const std::string& name, const std::function<std::string()>& check) {
    try {
      facts_.emplace_back(name, check());
      return true;
    } catch (const Error& error) {
      if (!missing_told_ || error.exit_code() != ExitCode::not_found) add_error(name, placed(error), error.exit_code());
    } catch (const c10::Error& error) {
      add_error(name, error.what_without_backtrace(), ExitCode::failed);
    } catch (const std::filesystem::filesystem_error& error) {
      const Error told = error_of(error);
      add_error(name, told.what(), told.exit_code());
    } catch (const std::exception& error) {
      add_error(name, error.what(), ExitCode::failed);
    }
    return false;
  }

  /// What stands in the way of the whole recipe. When it lists missing files, no part tells of them again.
  void add(const std::string& name, const Error& error) {
    missing_told_ = missing_told_ || error.exit_code() == ExitCode::bad_recipe;
    add_error(name, error.what(), error.exit_code());
  }

  int print(bool as_json) const {
    Json json{{"ok", errors_.empty()}, {"facts", Json::object()}, {"errors", Json::array()}};
    for (const auto& [name, text] : facts_) json["facts"][name] = text;
    for (const auto& [name, text] : errors_) json["errors"].push_back({{"part", name}, {"message", text}});
    if (as_json) {
      std::printf("%s\n", printable_json(json).c_str());
      return static_cast<int>(exit_code_);
    }
    for (const auto& [name, text] : facts_) std::printf("ok     %-14s %s\n", name.c_str(), indented(text).c_str());
    for (const auto& [name, text] : errors_) std::printf("ERROR  %-14s %s\n", name.c_str(), indented(text).c_str());
    if (errors_.empty())
      std::printf("The recipe is ready to run.\n");
    else
      std::printf("%zu problem%s found.\n", errors_.size(), errors_.size() == 1 ? "" : "s");
    return static_cast<int>(exit_code_);
  }

 private:
  /// A mistake of the recipe with its place.
  std::string placed(const Error& error) const {
    return error.exit_code() == ExitCode::bad_recipe ? recipe::with_position(error.what(), positions_) : error.what();
  }
  void add_error(const std::string& name, const std::string& text, ExitCode code) {
    if (errors_.empty()) exit_code_ = code;
    for (auto& [names, known] : errors_)  // one mistake that several parts meet is one finding
      if (known == text) {
        names += ", " + name;
        return;
      }
    errors_.emplace_back(name, text);
  }
  const recipe::Positions& positions_;
  std::vector<std::pair<std::string, std::string>> facts_, errors_;
  ExitCode exit_code_ = ExitCode::done;
  bool missing_told_ = false;
};

/// The recipe's parts, though files or devices are missing: that is a finding, and everything else is looked at,
/// without devices on shapes alone, as `plan` does. Throws Error when not even that can be made.
std::unique_ptr<assembly::Assembly> assemble(const CheckRequest& request, recipe::Recipe recipe,
                                             plugin::Loader& plugins, const distributed::Place& place,
                                             Findings& findings) {
  if (request.problem) findings.add("recipe", *request.problem);
  try {
    return std::make_unique<assembly::Assembly>(recipe, plugins, request.libraries, place);
  } catch (const Error& error) {
    auto on_shapes = std::make_unique<assembly::Assembly>(std::move(recipe), plugins, place.size);
    findings.add(error.exit_code() == ExitCode::unavailable ? "devices" : "recipe", error);
    return on_shapes;
  }
}

/// Where devices cannot be opened, encoders are looked at on shapes alone.
assembly::Weights weights_for(const assembly::Devices& devices) {
  return devices.are_open() ? assembly::Weights::file : assembly::Weights::shapes;
}

/// With --resume-with checkpoint the recipe that a run would go on with. What stands in the way is a finding of the
/// parts.
recipe::Recipe as_resumed(const CheckRequest& request, const plugin::Loader& plugins) {
  recipe::Recipe written = recipe_of(request, plugins);
  if (request.resume_with != "checkpoint") return written;
  try {
    const auto overrides = identity::overrides_to_checkpoint(written, plugins.found());
    if (overrides.empty()) return written;
    recipe::Recipe changed = recipe::changed(written, overrides, plugin::schemas(plugins.found()));
    log_warning(identity::gone_on_as_checkpoint(overrides));
    return changed;
  } catch (const Error&) {
    return written;
  }
}

std::string check_data(const recipe::Recipe& recipe, int64_t multiple, const CheckRequest& request,
                       data::Dataset& dataset) {
  if (!recipe.pictures()) {
    dataset = data::scan_texts(recipe.data);
    return std::to_string(dataset.samples.size()) + " texts";
  }
  metrics::Console console(preparation::console_options(request.quiet));
  data::ScanOptions options;
  options.multiple = multiple;
  options.verify_pixels = true;  // a run finds what is broken inside only when it encodes
  if (metrics::stderr_is_terminal())
    options.progress = [&](std::size_t done, std::size_t total) {
      console.phase(static_cast<int64_t>(done), static_cast<int64_t>(total), "pictures");
    };
  dataset = data::scan(recipe.data, options);
  std::vector<std::string> sizes;
  for (const data::Sample& sample : dataset.samples)
    if (std::find(sizes.begin(), sizes.end(), sample.bucket.text()) == sizes.end())
      sizes.push_back(sample.bucket.text());
  std::string text = std::to_string(dataset.samples.size()) + " pictures with captions, sizes";
  for (const std::string& size : sizes) text += " " + size;
  for (const std::string& note : dataset.notes) text += "; " + note;
  return text;
}

/// The model's required inputs must come from the objective, or from text encoder and data: those have a shape.
void check_inputs(const Model& model, const Objective& objective) {
  std::vector<std::string> provided = objective.provides();
  provided.push_back("prompt_embeds");
  for (const InputSpec& input : model.inputs())
    if (input.required && !input.shape && std::find(provided.begin(), provided.end(), input.name) == provided.end())
      throw Error(ExitCode::bad_recipe, "the model needs the input \"" + input.name + "\" (" + input.meaning +
                                            "), which neither objective nor text encoder provides");
}

std::string check_model(assembly::Assembly& assembly) {
  const auto placement = assembly.components.placement();
  const assembly::LoadedModel loaded =
      assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none, placement.get()});
  check_inputs(*loaded.model, *assembly.components.objective());
  std::string text =
      loaded.model->describe() + "; " + planning::report_placement(loaded.placement, loaded.parts).text();
  if (!loaded.adapter) return text + "; all parameters are trained";
  return text + "; " + loaded.adapter->describe() + " on " + std::to_string(loaded.adapted.size()) + " of " +
         std::to_string(loaded.inventory.linears.size()) + " linear layers";
}

/// How every type of block is run, or the plan for memory.budget.
std::string check_memory(assembly::Assembly& assembly, const std::optional<planning::BatchShape>& batch) {
  if (!batch) return "known when the captions are encoded";
  if (assembly.recipe.memory.budget > 0) return planner::describe(planning::plan_budget(assembly, *batch));
  try {
    return "a micro-batch of " + std::to_string(batch->samples) + ":\n" +
           planner::table(planning::strategy_rows(assembly, *batch)) + assembly.strategies.stack().idle();
  } catch (const Error& error) {
    // It trains all the same; what cannot be run on shapes alone can neither be planned nor told before.
    if (error.code() != "NO_SHAPE_KERNEL") throw;
    return std::string("not known before a run: ") + error.what();
  }
}

/// Bytes of a device that no program uses; nullopt where its allocator does not tell.
std::optional<int64_t> free_on(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  try {
    return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

[[noreturn]] void too_little(const std::string& where, int64_t need, int64_t free) {
  throw Error(ExitCode::out_of_memory,
              where + ": the run needs " + format_bytes(static_cast<double>(need)) + " at its highest, " +
                  format_bytes(static_cast<double>(free)) +
                  " are free. Less memory: memory.strategies = [\"full_checkpointing\"], a smaller "
                  "train.micro_batch_size or resolution; `trainer plan` shows the phases",
              "MEMORY_SHORT");
}

/// What `plan` foretells, against what the machine and its devices have left now.
std::string check_free_memory(const distributed::Place& place, assembly::Assembly& assembly) {
  const recipe::Recipe& recipe = assembly.recipe;
  if (recipe.memory.budget > 0 && !planning::limits_devices(recipe.placement)) return "memory.budget is kept to";
  const planning::Replan replan = planning::replan_of(recipe, assembly.components.plugins(), place.size);
  std::optional<planning::Plan> plan;
  try {
    plan = replan({});
  } catch (const std::exception& error) {  // it may run all the same; what is wrong with it is another finding
    return std::string("not known before a run: ") + error.what();
  }
  planning::require_device_budgets(recipe.placement, *plan, replan);
  if (recipe.memory.budget > 0) return "memory.budget and placement.budgets are kept to";
  std::string text;
  for (std::size_t i = 0; i < assembly.devices.training().size() && i < plan->memories.size(); ++i) {
    const at::Device device = assembly.devices.training()[i];  // of this rank; the plan is rank 0's
    const std::optional<int64_t> free = free_on(device);
    if (!free) continue;
    int64_t most = 0;
    for (const planning::PhasePlan& phase : plan->phases)
      if (phase.bytes) most = std::max(most, (*phase.bytes)[i]);
    if (most > *free) too_little(device.str(), most, *free);
    text += device.str() + " needs " + format_bytes(static_cast<double>(most)) + " of " +
            format_bytes(static_cast<double>(*free)) + " free; ";
  }
  const std::optional<int64_t> ram = plan->ram();
  const int64_t available = metrics::available_memory() + metrics::memory_use().resident;  // this process ends
  if (!ram || metrics::available_memory() <= 0) return text + "RAM: not known";
  if (*ram > available) too_little("RAM", *ram, available);
  return text + "RAM needs " + format_bytes(static_cast<double>(*ram)) + " of " +
         format_bytes(static_cast<double>(available)) + " free";
}

std::string check_validation(const recipe::Recipe& recipe, const data::Dataset& dataset) {
  const data::Holdout holdout = data::hold_out(dataset, recipe);
  const std::size_t held = data::part_of(dataset, holdout, true).samples.size();
  const recipe::Validation& asked = recipe.validation;
  std::string text = std::to_string(held) + " of " + std::to_string(dataset.samples.size()) +
                     (recipe.pictures() ? " pictures" : " texts") + " held out, " + std::to_string(asked.timesteps) +
                     " timesteps each, before and after training" +
                     (asked.every > 0 ? " and every " + std::to_string(asked.every) + " steps" : "");
  for (const std::string& note : holdout.notes) text += "; " + note;
  return text;
}

std::string check_sample(const recipe::Recipe& recipe, int64_t factor) {
  for (const int64_t side : recipe.sample.size)
    if (side % factor != 0)
      throw Error(ExitCode::bad_recipe, "sample.size: " + std::to_string(side) + " is no multiple of " +
                                            std::to_string(factor) + ", the autoencoder's step");
  return std::to_string(recipe.sample.prompts.size()) + " prompts, " + std::to_string(recipe.sample.steps) +
         " steps each";
}

/// What a run would do with the folder that is there, and the checkpoint that it would go on from.
std::string check_run_folder(assembly::Assembly& assembly, const CheckRequest& request,
                             std::optional<checkpoint::Choice>& newest) {
  const recipe::Recipe& recipe = assembly.recipe;
  const std::filesystem::path folder = recipe.run.output;
  planning::require_writable(folder, "run.output");
  if (const auto holder = checkpoint::RunLock::holder(folder))
    throw Error(ExitCode::locked, folder.string() + ": another run is writing here (" + *holder + ")", "RUN_LOCKED");
  if (const std::optional<checkpoint::Before> before = checkpoint::recipe_before(folder, recipe.checkpoint.fallback))
    identity::require_same_recipe(identity::parse_recipe(before->recipe, assembly.components.plugins().found()), recipe,
                                  folder, before->what, request.resume_with);
  const std::vector<int64_t> steps = checkpoint::steps_anywhere(folder, recipe.checkpoint.fallback);
  checkpoint::require_committed(folder, steps);
  std::vector<std::string> notes;
  newest = checkpoint::foretell_newest(checkpoint::roots_of(folder, recipe.checkpoint.fallback), notes);
  if (!newest) {
    const bool begun = type_of(folder / "ckpt") == std::filesystem::file_type::directory;
    return folder.string() + (begun ? ", no checkpoint yet" : ", a new run");
  }
  const int64_t step = newest->manifest.step;
  if (const std::string warning = identity::later_result(folder, step); !warning.empty()) log_warning(warning);
  if (step > 0 && step < recipe.run.steps)
    checkpoint::Attempts::require_another(folder, step, recipe.checkpoint.fallback);
  std::string text = folder.string() + ", goes on after step " + std::to_string(step);
  for (const std::string& note : notes) text += "; not taken: " + note;
  return text;
}

/// That what is trained on is what the checkpoint was trained on.
std::string check_content(assembly::Assembly& assembly, const CheckRequest& request, const data::Dataset& dataset,
                          const checkpoint::Choice& newest) {
  std::map<std::string, std::string> now = identity::identities_of_data(assembly.encoders, dataset);
  now.merge(identity::identities_of_weights(
      assembly.recipe, *assembly.models.load(assembly.strategies.stack(), {assembly::Weights::none}).source));
  if (assembly.recipe.memory.budget == 0) now["formats"] = assembly.strategies.stack().format_identity();
  const bool same =
      identity::require_same_content({{}, newest.manifest, newest.folder}, now, assembly.recipe, request.resume_with,
                                     [&](const std::string& key, const std::string& value) {
                                       return identity::as_first_recorded(assembly.encoders, key, value);
                                     });
  return std::string("data, weights and encoders are ") + (same ? "" : "not ") + "those of " + newest.folder.string();
}

}  // namespace

int command_check(const CheckRequest& request) {
  const distributed::Place place = distributed::find_place();
  plugin::Loader plugins(request.plugins);
  Findings findings(request.recipe.positions);
  const std::unique_ptr<assembly::Assembly> made =
      assemble(request, as_resumed(request, plugins), plugins, place, findings);
  assembly::Assembly& assembly = *made;
  const recipe::Recipe& recipe = assembly.recipe;
  int64_t factor = 16;
  const bool model = findings.part("model", [&] { return check_model(assembly); });
  data::Dataset dataset;
  if (recipe.pictures())
    findings.part("autoencoder", [&] {
      const auto autoencoder = assembly.encoders.autoencoder(weights_for(assembly.devices));
      factor = autoencoder->spatial_factor();
      return autoencoder->describe();
    });
  findings.part("text encoder",
                [&] { return assembly.encoders.text_encoder(weights_for(assembly.devices))->describe(); });
  findings.part("data", [&] { return check_data(recipe, factor, request, dataset); });
  if (const std::string warning = preparation::empty_captions_warning(recipe, dataset); !warning.empty())
    log_warning(warning);
  std::optional<planning::BatchShape> shape;
  if (recipe.validates() && !dataset.samples.empty())
    findings.part("validation", [&] { return check_validation(recipe, dataset); });
  const bool planned = !dataset.samples.empty() && findings.part("memory", [&] {
    shape = planning::foretold_shape(assembly, planning::largest_of(recipe, factor), factor);
    return check_memory(assembly, shape);
  });
  if (model && planned) findings.part("free memory", [&] { return check_free_memory(place, assembly); });
  if (!recipe.sample.prompts.empty()) findings.part("sample", [&] { return check_sample(recipe, factor); });
  std::optional<checkpoint::Choice> newest;
  findings.part("run folder", [&] { return check_run_folder(assembly, request, newest); });
  if (newest && model && !dataset.samples.empty())
    findings.part("checkpoint", [&] { return check_content(assembly, request, dataset, *newest); });
  findings.part("disk", [&] {
    return planning::check_room(
        recipe,
        model ? planning::disk_need(assembly, preparation::uncached(assembly, dataset), shape) : planning::DiskNeed());
  });
  return findings.print(request.json);
}

}  // namespace trainer::engine
