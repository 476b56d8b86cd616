#include <ATen/core/Tensor.h>
#include <unistd.h>
#include <base/files.hpp>
#include <base/log.hpp>
#include <cache/dataset.hpp>
#include <checkpoint/signals.hpp>
#include <data/holdout.hpp>
#include <identity/identities.hpp>
#include <preparation/cache_phase.hpp>
#include <preparation/cached_samples.hpp>
#include <sampling/guidance.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>

namespace trainer::preparation {
namespace {

/// This rank's micro-batches of every step.
class CachedSource final : public execution::BatchSource {
 public:
  CachedSource(cache::CachedBatches batches, const distributed::Share& share)
      : batches_(std::move(batches)), share_(share) {}
  int64_t micro_batches() const override { return share_.micro_batches; }
  Batch batch(int64_t step, int64_t micro) override { return batches_.batch(step, share_.first_micro_batch + micro); }
  std::vector<std::string> files(int64_t step, int64_t micro) const override {
    return batches_.files(step, share_.first_micro_batch + micro);
  }

 private:
  cache::CachedBatches batches_;
  distributed::Share share_;
};

cache::Encoders encoders_of(assembly::Encoders& encoders) {
  const identity::EncoderIdentities identities = identity::identities_of(encoders);
  return {identities.autoencoder, identities.text_encoder, [&encoders] { return encoders.autoencoder(); },
          [&encoders] { return encoders.text_encoder(); }};
}

/// Prompts of samples and the negative prompt: encoded in the same call as the captions.
std::vector<std::string> sample_texts(const recipe::Recipe& recipe, const std::vector<std::string>& prompts) {
  std::vector<std::string> texts = prompts;
  if (!prompts.empty()) texts.push_back(recipe.sample.negative_prompt);
  return texts;
}

sampling::SamplePlan plan_of(assembly::Assembly& assembly, const std::vector<std::string>& prompts,
                             const cache::Store& store, const cache::EncoderIdentity& encoder, int64_t factor) {
  sampling::SamplePlan plan{assembly.recipe.sample, prompts, {}, factor};
  const at::Device device = assembly.devices.training().front();
  const auto conditioning = [&](const std::string& text) {
    NamedTensors tensors = store.load(cache::kText, cache::text_key(encoder, text));
    for (auto& [name, tensor] : tensors) tensor = tensor.unsqueeze(0).to(device);
    return tensors;
  };
  for (const std::string& prompt : prompts)
    plan.conditioning.push_back({conditioning(prompt), conditioning(plan.settings.negative_prompt)});
  return plan;
}

data::SamplerOptions sampler_options(const recipe::Recipe& recipe, const distributed::Share& share) {
  data::SamplerOptions options;
  options.seed = static_cast<uint64_t>(recipe.run.seed);
  options.batch_size = recipe.train.batch_size;
  options.micro_batch_size = share.micro_batch_size;
  options.caption_dropout = recipe.train.caption_dropout;
  return options;
}

cache::BuildOptions build_options(metrics::Console& console, distributed::Group& ranks) {
  cache::BuildOptions options;
  options.part = ranks.rank();
  options.parts = ranks.size();
  options.progress = [&console, &ranks](int64_t done, int64_t total, const std::string& what) {
    console.phase(done, total, what);
    ranks.progress("encoding " + what + ", " + std::to_string(done) + " of " + std::to_string(total));
    ranks.check();
    if (checkpoint::stop_signal() == 0) return;
    console.clear();
    throw Error(ExitCode::preempted, "stopped by signal " + std::to_string(checkpoint::stop_signal()) +
                                         " while encoding; what is done stays cached: run the same command again");
  };
  return options;
}

/// An entry is written in seconds; other runs, of other machines too, write to the same folder.
constexpr std::chrono::hours kLongForAnEntry{24};

/// An empty file in a folder as long as this lives; none where it cannot be written, as in a cache that only is read.
class Token {
 public:
  Token(const std::filesystem::path& folder, bool wanted) {
    if (!wanted) return;
    name_ = ".seen-by-all-" + std::to_string(::getpid()) + "-" +
            std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
    file_ = folder / name_;
    try {
      make_folders(folder);
      write_file_atomically(file_, "");
    } catch (const Error&) {
      name_.clear();
    }
  }
  ~Token() {
    std::error_code ignored;
    if (!name_.empty()) std::filesystem::remove(file_, ignored);
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::filesystem::path file_;
};

/// Collective: what one rank encodes there all others read.
void require_shared_cache(const std::filesystem::path& folder, distributed::Group& ranks) {
  const Token token(folder, ranks.writer());
  const std::string name = ranks.from_writer(token.name());
  if (!name.empty() && !std::filesystem::exists(folder / name))
    throw Error(ExitCode::not_found, folder.string() +
                                         ": what rank 0 writes there is not seen here; cache.folder must lie on a "
                                         "file system that all machines share, or every rank encodes for nothing");
  ranks.barrier();
}

/// Collective: of all ranks.
int64_t sum(distributed::Group& ranks, std::size_t own) {
  int64_t all = 0;
  for (const std::string& count : ranks.texts(std::to_string(own))) all += std::stoll(count);
  return all;
}

}  // namespace

metrics::ConsoleOptions console_options(bool quiet) {
  metrics::ConsoleOptions options;
  options.terminal = metrics::stderr_is_terminal();
  if (quiet) options.write = [](std::string_view) {};
  return options;
}

void agree(assembly::Assembly& assembly, distributed::Group& ranks) {
  if (ranks.size() == 1) return;
  const distributed::LongWork work(ranks, "comparing recipe and files", distributed::LongWork::When::all_live);
  require_shared_cache(assembly.recipe.cache.folder, ranks);
  identity::require_same_on_all(assembly.encoders, ranks);
}

std::string empty_captions_warning(const recipe::Recipe& recipe, const data::Dataset& dataset) {
  const bool wanted = recipe.train.caption_dropout < 1 && !dataset.samples.empty();
  if (!wanted || std::any_of(dataset.samples.begin(), dataset.samples.end(),
                             [](const data::Sample& sample) { return !sample.caption.empty(); }))
    return {};
  return "all captions are empty: what is trained answers to no prompt; write captions, or give one for all as "
         "data.caption or data.trigger";
}

Uncached uncached(assembly::Assembly& assembly, const data::Dataset& dataset) {
  const recipe::Recipe& recipe = assembly.recipe;
  const cache::Store store(recipe.cache.folder);
  std::optional<cache::Encoders> encoders;
  try {
    encoders = encoders_of(assembly.encoders);
  } catch (const Error&) {  // what is wrong with them is told elsewhere
  }
  std::set<std::string> latents, texts;
  const auto add = [&](std::set<std::string>& missing, std::string_view kind, const std::string& key) {
    if (!encoders || store.check(kind, key, /*whole=*/false).kind != cache::Store::State::Kind::present)
      missing.insert(key);
  };
  const cache::EncoderIdentity none;
  const auto add_text = [&](const std::string& caption) {
    add(texts, cache::kText, cache::text_key(encoders ? encoders->text_encoder : none, caption));
  };
  add_text("");
  for (const std::string& prompt : sample_texts(recipe, recipe.sample.prompts)) add_text(prompt);
  for (const data::Sample& sample : dataset.samples) {
    add_text(sample.caption);
    if (sample.is_picture())
      add(latents, cache::kLatents,
          cache::latents_key(encoders ? encoders->autoencoder : none, sample.content, sample.bucket));
  }
  return {latents.size(), texts.size()};
}

Prepared prepare(assembly::Assembly& assembly, metrics::Console& console, distributed::Group& ranks) {
  const distributed::LongWork work(ranks, "reading the data set", distributed::LongWork::When::all_live);
  const recipe::Recipe& recipe = assembly.recipe;
  const cache::Store store(recipe.cache.folder);
  if (ranks.writer()) store.remove_unfinished(kLongForAnEntry);
  const int64_t multiple = recipe.pictures() ? assembly.encoders.spatial_factor() : 1;
  data::Dataset dataset =
      recipe.pictures() ? data::scan(recipe.data, {.multiple = multiple}) : data::scan_texts(recipe.data);
  ranks.require_same("the data set", identity::identity_of(dataset));
  if (const std::string warning = empty_captions_warning(recipe, dataset); !warning.empty()) log_warning(warning);
  const cache::Encoders encoders = encoders_of(assembly.encoders);
  cache::Built built = cache::build(store, dataset, sample_texts(recipe, recipe.sample.prompts), encoders,
                                    build_options(console, ranks));
  Prepared prepared;
  prepared.notes = dataset.notes;
  if (recipe.validates()) {
    const data::Holdout holdout = data::hold_out(dataset, recipe);
    prepared.validation = held_out_samples(store, dataset, holdout, built);
    prepared.held_out = static_cast<std::size_t>(prepared.validation->micro_batches());
    prepared.notes.insert(prepared.notes.end(), holdout.notes.begin(), holdout.notes.end());
    keep_trained(dataset, holdout, built);
  }
  prepared.pictures = dataset.samples.size();
  prepared.notes.insert(prepared.notes.end(), built.notes.begin(), built.notes.end());
  prepared.latents_made = sum(ranks, built.latents_made);  // from here on all entries are there
  prepared.captions_made = sum(ranks, built.texts_made);
  prepared.data_identity = identity::identity_of(dataset);
  prepared.encoders_identity =
      identity::identity_of(identity::EncoderIdentities{encoders.text_encoder, encoders.autoencoder});
  prepared.samples = plan_of(assembly, recipe.sample.prompts, store, encoders.text_encoder, multiple);
  data::Sampler sampler(cache::sampler_items(dataset), sampler_options(recipe, assembly.share));
  prepared.batches = std::make_unique<CachedSource>(
      cache::CachedBatches(cache::Reader(store), std::move(built), std::move(sampler)), assembly.share);
  return prepared;
}

sampling::SamplePlan prepare_samples(assembly::Assembly& assembly, const std::vector<std::string>& prompts,
                                     metrics::Console& console) {
  const cache::Store store(assembly.recipe.cache.folder);
  const cache::Encoders encoders = encoders_of(assembly.encoders);
  cache::build(store, data::Dataset{}, sample_texts(assembly.recipe, prompts), encoders,
               build_options(console, distributed::Group::alone()));
  return plan_of(assembly, prompts, store, encoders.text_encoder, assembly.encoders.spatial_factor());
}

}  // namespace trainer::preparation
