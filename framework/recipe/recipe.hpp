/// @file The recipe as plain structs: everything a run is told, complete and checked. Member initialisers are the
/// defaults; what each key means, its range and unit stand in the schema tables (sections_*.cpp) and, generated from
/// them, in docs/recipe-reference.md. Paths are absolute. Made by load() in <recipe/load.hpp>.
#pragma once

#include <trainer/sdk/options.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer::recipe {

/// Where a value or table was written; line 0: on the command line, `file` then is e.g. "--set optimizer.lr=x".
struct SourcePosition {
  std::string file;
  uint32_t line = 0, column = 0;

  /// "recipe.toml:3:7", or `file` alone on the command line.
  [[nodiscard]] std::string text() const;
};

/// By dotted key ("data.0.folder"); keys that have their default are missing.
using Positions = std::map<std::string, SourcePosition>;

struct Run {
  std::string name;    ///< load() fills in the recipe's file name without extension
  std::string output;  ///< load() fills in runs/<name>
  int64_t seed = 0, steps = 1000;
};

/// A model, encoder, objective, ...: which one, the framework's keys of its section (those it has), and its options.
struct Component {
  std::string kind;            ///< name of the component
  std::string path;            ///< weights; empty if the component reads none; of an adapter the LoRA to start from
  std::string tokenizer;       ///< text_encoder; load() fills in the folder "tokenizer" beside `path`; empty as `path`
  std::string dtype = "bf16";  ///< model, text_encoder, autoencoder: "bf16" or "fp32"
  std::string device;          ///< text_encoder, autoencoder: empty means the first device of the placement
  Options options;             ///< every key of the component's schema
  SourcePosition position;
};

struct Data {
  std::string folder, metadata;  ///< metadata: jsonl or csv, empty if none
  std::vector<std::string> captions = {".txt", ".caption"};
  std::string caption, trigger;
  int64_t repeats = 1;
  std::vector<int64_t> resolution = {512};  ///< one number: buckets around this area; {width, height}: exactly that
  std::string crop = "center";
  double max_aspect = 2.0;
  bool upscale = true, recursive = false;
  bool validation = false;  ///< held out whole, not trained on
  SourcePosition position;
};

struct Train {
  int64_t batch_size = 1, micro_batch_size = 1;   ///< the second divides the first
  double max_grad_norm = 1.0;                     ///< 0: no clipping
  double caption_dropout = 0.0, ema_decay = 0.0;  ///< EMA 0: none
  std::string nonfinite = "stop";
  int64_t threads = 0;          ///< 0: all cores
  std::string matmul = "auto";  ///< library for fp32 products on the CPU
};

struct Optimizer {
  std::string kind = "adamw";
  double lr = 1e-4;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 1e-4;
  std::string schedule = "constant";
  int64_t warmup_steps = 0;
  double min_factor = 0.0;
  int64_t cycles = 1;
  bool fused_backward = false;  ///< update each parameter in backward; needs max_grad_norm 0 and one micro-batch
};

struct Memory {
  std::vector<std::string> strategies;
  int64_t budget = 0;                 ///< bytes; 0: none given
  std::string verify = "first";       ///< "first" or "always": when recomputed blocks are checked
  std::vector<Component> components;  ///< one for each of `strategies`, in that order
};

struct Placement : Component {
  std::vector<std::string> devices = {"cpu"};
  std::vector<std::string> simulated;  ///< memory of sim:0, sim:1, ... like "24GB"; empty: without a limit

  /// The same in bytes.
  [[nodiscard]] std::vector<int64_t> simulated_bytes() const;
};

struct Sample {
  std::vector<std::string> prompts;  ///< empty: no samples
  std::string negative_prompt;
  std::vector<int64_t> size = {512, 512};  ///< {width, height}
  int64_t steps = 28;
  double guidance = 4.0;
  std::vector<int64_t> seeds = {42};
  int64_t every = 0;  ///< 0: only before and after
  bool before = true, after = true;
};

struct Validation {
  double fraction = 0.0;  ///< of the pictures of the other sources
  int64_t every = 0;      ///< 0: only before and after
  int64_t timesteps = 4;  ///< for each sample
  int64_t seed = 0;
};

struct Checkpoint {
  int64_t every = 250;            ///< 0: only at the end
  int64_t keep = 3;               ///< 0: all
  int64_t keep_every = 0;         ///< 0: none
  int64_t final_save_wait = 600;  ///< seconds
  std::string fallback;           ///< folder for what run.output takes no more; empty: none
  bool reserve = false;           ///< keep room on the disk for the last save
};

struct Cache {
  std::string folder;  ///< load() fills in <run.output>/cache
};

struct Metrics {
  int64_t every = 1;
  bool tensorboard = true;
  double smoothing = 0.98;
};

struct Distributed {
  int64_t timeout = 600;  ///< seconds
};

struct Recipe {
  Run run;
  Component model, text_encoder;
  Component autoencoder;   ///< its kind is empty when the objective trains on texts alone
  std::vector<Data> data;  ///< at least one
  Train train;
  std::optional<Component> adapter;  ///< absent: all parameters are trained
  Component objective;
  Optimizer optimizer;
  Memory memory;
  Placement placement;
  Sample sample;
  Validation validation;
  Checkpoint checkpoint;
  Cache cache;
  Metrics metrics;
  Distributed distributed;

  /// Whether samples are pictures with captions; otherwise texts.
  [[nodiscard]] bool pictures() const { return !autoencoder.kind.empty(); }

  /// Whether samples are held out from training.
  [[nodiscard]] bool validates() const;

  std::string file;  ///< the recipe file as it was named
  /// Dotted key -> the path as the user wrote it, for outputs that must not carry absolute paths.
  std::map<std::string, std::string> paths_as_written;
  Positions positions;  ///< of what was written
};

}  // namespace trainer::recipe
