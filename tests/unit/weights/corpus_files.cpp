/// @file Writes the corpus of the safetensors reader as files, for other readers: corpus_files FOLDER. Prints one line
/// a file: its name, the hash of its content, its label. Called by tests/data/safetensors/make_verdicts.py.
#include <base/hash.hpp>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "corpus.hpp"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int number = 0;
  for (const auto& example : trainer::weights::corpus::all_cases()) {
    const std::string name = std::to_string(number++) + ".safetensors";
    std::ofstream(std::filesystem::path(argv[1]) / name, std::ios::binary) << example.bytes;
    std::printf("%s %s %s\n", name.c_str(), trainer::xxh128(example.bytes).c_str(), example.label.c_str());
  }
  return 0;
}
