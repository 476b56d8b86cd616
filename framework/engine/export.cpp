/// @file `trainer export FILE --format NAME`: an adapter file in the form that another program reads.
#include <assembly/lora_families.hpp>
#include <base/files.hpp>
#include <base/printable.hpp>
#include <engine/commands.hpp>
#include <nlohmann/json.hpp>
#include <trainer/sdk/error.hpp>

#include <cstdio>

namespace trainer::engine {
namespace {

namespace fs = std::filesystem;

fs::path output_of(const ExportRequest& request, const fs::path& source) {
  if (!request.output.empty()) return request.output;
  return source.parent_path() / (source.stem().string() + "-" + request.format + ".safetensors");
}

/// Without the metadata of a file that another program wrote: it may be personal.
AdapterFile portable(AdapterFile adapter, const weights::TensorFile& file) {
  if (adapter::stated_kind(file).empty()) adapter.metadata.clear();
  return adapter;
}

}  // namespace

int command_export(const ExportRequest& request) {
  const fs::path source = request.file;
  const weights::TensorFile file(source, {weights::Profile::compat, weights::ReadMode::copy});
  plugin::Loader loader(request.plugins);
  const assembly::KnownAdapter known = assembly::open_adapter(loader, file, request.model);
  const LoraFormat& format = adapter::format_named(known.family, request.format);
  const fs::path output = output_of(request, source);
  require_replaceable(output);
  if (fs::exists(output) && !request.force)
    throw Error(ExitCode::usage, output.string() + " exists: give another --output, or --force to replace it");
  const std::size_t layers = known.adapter.file.layers.size();
  if (known.adapter.lora)
    adapter::write_lora(output, *known.adapter.lora, known.family, format);
  else
    adapter::write_adapter(output, portable(known.adapter.file, file), known.adapter.kind, known.family, format,
                           known.adapter.step);
  if (request.json) {
    std::printf("%s\n", printable_json(nlohmann::ordered_json{{"lora", output.string()},
                                                              {"family", known.family.name},
                                                              {"from", known.adapter.format},
                                                              {"format", format.name},
                                                              {"readers", format.readers},
                                                              {"layers", layers}})
                            .c_str());
  } else {
    std::printf("%s\n", output.c_str());
    const std::string kind = known.adapter.lora ? "LoRA" : "adapter \"" + known.adapter.kind + "\"";
    std::fprintf(stderr, "%s %s on %zu layers, %s to %s, for %s\n", known.family.name.c_str(), kind.c_str(), layers,
                 known.adapter.format.c_str(), format.name.c_str(),
                 known.adapter.lora ? format.readers.c_str() : "programs that read this kind of adapter");
  }
  return 0;
}

}  // namespace trainer::engine
