#include <recipe/fields.hpp>

namespace trainer::recipe {
namespace {

constexpr const char* kKindHelp = "Name of the component, which a plugin offers.";

Field<Component> kind_field(const char* fallback) {
  return field(&Component::kind, {.key = "kind", .fallback = {std::string(fallback)}, .help = kKindHelp});
}

Field<Component> weights_field(const char* help) {
  return field(&Component::path, {.key = "path", .type = kPath, .required = true, .help = help, .must_exist = true});
}

Field<Component> dtype_field() {
  return field(
      &Component::dtype,
      {.key = "dtype", .choices = {"bf16", "fp32"}, .help = "Number format of the weights and of the computation."});
}

Field<Component> device_field() {
  return field(&Component::device, {.key = "device",
                                    .fallback_text = "the first of placement.devices",
                                    .help = "Device that encodes, for example \"cpu\" or \"cuda:0\"."});
}

}  // namespace

const std::vector<Field<Component>>& model_fields() {
  static const std::vector<Field<Component>> fields = {
      kind_field("flux2"),
      weights_field("Weights of the model: a folder, a sharded folder or a single file. The layout is detected."),
      dtype_field(),
  };
  return fields;
}

const std::vector<Field<Component>>& text_encoder_fields() {
  static const std::vector<Field<Component>> fields = {
      kind_field("mistral"),
      weights_field("Weights of the text encoder: a folder, a sharded folder or a single file."),
      field(&Component::tokenizer, {.key = "tokenizer",
                                    .type = kPath,
                                    .fallback_text = "the folder \"tokenizer\" beside path",
                                    .help = "Folder with tokenizer.json, or the file itself.",
                                    .must_exist = true}),
      dtype_field(),
      device_field(),
  };
  return fields;
}

const std::vector<Field<Component>>& autoencoder_fields() {
  static const std::vector<Field<Component>> fields = {
      kind_field("flux2_vae"),
      weights_field("Weights of the autoencoder: a folder or a single file."),
      dtype_field(),
      device_field(),
  };
  return fields;
}

const std::vector<Field<Component>>& adapter_fields() {
  static const std::vector<Field<Component>> fields = {
      kind_field("lora"),
      field(&Component::path, {.key = "path",
                               .type = kPath,
                               .fallback_text = "none",
                               .help = "File of the adapter to start from; a LoRA in any format the model knows "
                                       "(docs/lora-formats.md). For lora together with init = \"file\".",
                               .must_exist = true}),
  };
  return fields;
}

const std::vector<Field<Component>>& objective_fields() {
  static const std::vector<Field<Component>> fields = {kind_field("flow_matching")};
  return fields;
}

const std::vector<Field<Placement>>& placement_fields() {
  static const std::vector<Field<Placement>> fields = {
      {kind_field("single").spec, &Placement::kind},
      field(&Placement::devices, {.key = "devices",
                                  .type = kString | kStringList,
                                  .min_items = 1,
                                  .help = "The devices to train on, for example \"cpu\" or [\"cuda:0\", \"cuda:1\"]; "
                                          "[\"sim:0\", \"sim:1\"] are simulated.",
                                  .alias = "device"}),
      field(&Placement::simulated,
            {.key = "simulated",
             .type = kString | kStringList,
             .max_items = 16,
             .help = "The memory of the simulated devices \"sim:0\", \"sim:1\", ..., one amount a device, e.g. "
                     "[\"24GB\", \"24GB\"]: there are as many, and what does not fit is out of memory. Left out, there "
                     "are four without a limit."}),
  };
  return fields;
}

const std::vector<Field<Memory>>& memory_fields() {
  static const std::vector<Field<Memory>> fields = {
      field(&Memory::strategies,
            {.key = "strategies",
             .help = "Memory strategies by plugin name, in the order they are applied; none trains "
                     "plainly. Options of a strategy stand in [memory.NAME]."}),
      field(&Memory::budget, {.key = "budget",
                              .type = kBytes,
                              .fallback_text = "none",
                              .help = "Device memory the run may use, like \"22GB\": the planner then chooses the "
                                      "strategies. Excludes strategies."}),
      field(&Memory::verify,
            {.key = "verify",
             .choices = {"first", "always"},
             .help =
                 "When a recomputed block is checked for reading what it does not declare, and for computing the same "
                 "bits by the same operations with gradients, without and again: the first time with each shape, or "
                 "always, which costs two more forwards a step. For the debugging of model plugins."}),
  };
  return fields;
}

}  // namespace trainer::recipe
