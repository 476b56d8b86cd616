#include <cache/builder.hpp>

#include <c10/core/GradMode.h>
#include <base/hash.hpp>
#include <base/heartbeat.hpp>
#include <base/printable.hpp>
#include <cache/pixels.hpp>
#include <data/image.hpp>
#include <plugin/guard.hpp>
#include <trainer/sdk/error.hpp>

#include <algorithm>
#include <map>
#include <utility>

namespace trainer::cache {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  std::string text;
  for (const int64_t size : tensor.sizes()) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text + "]";
}

/// A caption in a message: its beginning, in quotes.
std::string caption_text(const std::string& caption) {
  constexpr std::size_t kShown = 60;
  std::size_t end = std::min(caption.size(), kShown);
  while (end < caption.size() && (static_cast<unsigned char>(caption[end]) & 0xC0) == 0x80) --end;  // whole characters
  return "caption \"" + caption.substr(0, end) + (end < caption.size() ? "...\"" : "\"");
}

class Builder {
 public:
  Builder(const Store& store, const data::Dataset& dataset, const Encoders& encoders, const BuildOptions& options)
      : store_(store), dataset_(dataset), encoders_(encoders), options_(options), saver_(store) {}

  Built run(std::span<const std::string> more_captions) {
    find_missing(more_captions);
    verify_images();
    const c10::NoGradGuard no_grad;
    try {
      make_texts();
      make_latents();
      saver_.commit();
    } catch (...) {
      keep_finished();
      throw;
    }
    return std::move(built_);
  }

 private:
  /// Whatever ends the work: what is done stays, unless saving it is what failed.
  void keep_finished() {
    try {
      saver_.commit();
    } catch (const Error&) {
    }
  }

  /// Sorts every distinct key into found and missing.
  void find_missing(std::span<const std::string> more_captions) {
    built_.empty_text = need_text("");
    for (const data::Sample& sample : dataset_.samples) {
      built_.entries.push_back({sample.file.string(), need_latents(sample), need_text(sample.caption)});
    }
    for (const std::string& caption : more_captions) need_text(caption);
    built_.latents_found = known_[kLatents].size() - missing_images_.size();
    built_.texts_found = known_[kText].size() - missing_texts_.size();
  }

  std::string need_latents(const data::Sample& sample) {
    if (!sample.is_picture()) return {};
    std::string key = latents_key(encoders_.autoencoder, sample.content, sample.bucket);
    if (!is_there(kLatents, key) && is_mine(key)) missing_images_.emplace(key, &sample);
    return key;
  }

  std::string need_text(const std::string& caption) {
    const std::string key = text_key(encoders_.text_encoder, caption);
    if (!is_there(kText, key) && is_mine(key)) missing_texts_.emplace(key, caption);
    return key;
  }

  bool is_there(std::string_view kind, const std::string& key) {
    const auto [it, fresh] = known_[kind].try_emplace(key, false);
    if (!fresh) return it->second;
    beat();
    const Store::State state = store_.check(kind, key, verified_bytes_ < options_.verify_bytes);
    verified_bytes_ += state.bytes;
    if (state.kind == Store::State::Kind::damaged) built_.notes.push_back(state.reason + "; it is made again");
    return it->second = state.kind == Store::State::Kind::present;
  }

  /// Whether this process makes the entry of a key, which ends in hexadecimal digits of a hash.
  [[nodiscard]] bool is_mine(const std::string& key) const {
    const uint64_t number = std::stoull(key.substr(key.size() - 8), nullptr, 16);
    return static_cast<int64_t>(number % static_cast<uint64_t>(options_.parts)) == options_.part;
  }

  void progress(std::size_t done, std::size_t total, const char* what) const {
    if (options_.progress) options_.progress(static_cast<int64_t>(done), static_cast<int64_t>(total), what);
  }

  /// Before hours of encoding: a header does not show what is broken in the pixels.
  void verify_images() {
    if (missing_images_.empty()) return;
    const std::size_t total = missing_images_.size();
    std::size_t done = 0;
    progress(0, total, "pictures");
    for (const auto& [key, sample] : missing_images_) {
      verify(*sample);
      progress(++done, total, "pictures");
    }
    report_bad_images("Mend or remove what is named here.");
  }

  /// What is decoded is kept within limits, so that it is what will be used.
  void verify(const data::Sample& sample) {
    const auto bytes = static_cast<uint64_t>(3 * sample.bucket.width * sample.bucket.height);
    const bool keep = kept_bytes_ + bytes <= options_.keep_bytes;
    const bool good = read(sample, [&](const std::string& content) {
      if (!keep) return data::verify_image(content);
      kept_.emplace(&sample, data::decode_image(content, sample.bucket.width, sample.bucket.height));
    });
    if (keep && good) kept_bytes_ += bytes;
  }

  void report_bad_images(const std::string& advice) {
    if (bad_images_.empty()) return;
    std::string text =
        std::to_string(bad_images_.size()) + (bad_images_.size() == 1 ? " file" : " files") + " cannot be used:";
    std::sort(bad_images_.begin(), bad_images_.end());
    for (const std::string& bad : bad_images_) text += "\n  " + bad;
    throw Error(ExitCode::bad_input, text + "\n" + advice, "DATASET");
  }

  void make_texts() {
    if (missing_texts_.empty()) return;
    const std::size_t total = missing_texts_.size();
    progress(0, total, "captions");
    const std::unique_ptr<TextEncoder> encoder = encoders_.make_text_encoder();
    std::vector<std::string> keys, captions;
    for (const auto& [key, caption] : missing_texts_) keys.push_back(key), captions.push_back(caption);
    auto step = static_cast<std::size_t>(std::min(options_.captions_first, options_.captions_per_call));
    for (std::size_t begin = 0, end = 0; begin < total; begin = end) {
      end = std::min(begin + step, total);
      const std::span<const std::string> part = std::span(captions).subspan(begin, end - begin);
      const std::vector<NamedTensors> encoded =
          plugin::guard(encoders_.text_encoder.name, "encode", [&] { return encoder->encode(part); });
      if (encoded.size() != part.size()) {
        throw PluginError(encoders_.text_encoder.name, "encode",
                          std::to_string(encoded.size()) + " results for " + std::to_string(part.size()) + " captions");
      }
      for (std::size_t i = 0; i < part.size(); ++i) {
        saver_.save(kText, keys[begin + i], encoded[i], caption_text(part[i]));
        progress(++built_.texts_made, total, "captions");
      }
      int64_t bytes = 0;
      for (const auto& [name, tensor] : encoded.front()) bytes += static_cast<int64_t>(tensor.nbytes());
      step = static_cast<std::size_t>(captions_of_call(options_, bytes));
    }
  }

  void make_latents() {
    if (missing_images_.empty()) return;
    progress(0, missing_images_.size(), "latents");
    std::map<uint64_t, std::vector<Wanted>> by_size;
    for (const auto& [key, sample] : missing_images_) by_size[sample->bucket.key()].push_back({key, sample});
    const std::unique_ptr<Autoencoder> autoencoder = encoders_.make_autoencoder();
    for (auto& [size, wanted] : by_size) {
      // In the order of the files, which is also that of their messages.
      std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) { return a.sample < b.sample; });
      const auto step = static_cast<std::size_t>(options_.images_per_call);
      for (std::size_t begin = 0; begin < wanted.size(); begin += step) {
        encode(*autoencoder, std::span(wanted).subspan(begin, std::min(step, wanted.size() - begin)));
      }
    }
    report_bad_images("Mend or remove what is named here; the others are cached.");
  }

  struct Wanted {
    std::string key;
    const data::Sample* sample;
  };

  void encode(Autoencoder& autoencoder, std::span<const Wanted> wanted) {
    std::vector<data::Image> images;
    std::vector<Wanted> good;
    for (const Wanted& one : wanted) {
      if (decode(*one.sample, images)) good.push_back(one);
    }
    if (good.empty()) return;
    const at::Tensor pixels = to_pixels(images);
    const at::Tensor latents =
        plugin::guard(encoders_.autoencoder.name, "encode", [&] { return autoencoder.encode(pixels); });
    if (latents.dim() != 5 || latents.size(0) != pixels.size(0)) {
      throw PluginError(encoders_.autoencoder.name, "encode",
                        "latents of shape " + shape_text(latents) + " for pixels of shape " + shape_text(pixels));
    }
    for (std::size_t i = 0; i < good.size(); ++i) {
      const data::Sample& sample = *good[i].sample;
      saver_.save(kLatents, good[i].key, {{"latents", latents[static_cast<int64_t>(i)]}},
                  printable(sample.file.filename().string()) + " at " + sample.bucket.text());
      progress(++built_.latents_made, missing_images_.size(), "latents");
    }
  }

  bool decode(const data::Sample& sample, std::vector<data::Image>& images) {
    if (auto kept = kept_.extract(&sample)) {
      images.push_back(std::move(kept.mapped()));
      return true;
    }
    return read(sample, [&](const std::string& bytes) {
      images.push_back(data::decode_image(bytes, sample.bucket.width, sample.bucket.height));
    });
  }

  /// False when the picture is bad, which is noted.
  bool read(const data::Sample& sample, const std::function<void(const std::string& bytes)>& use) {
    beat();
    try {
      const std::string bytes = data::read_image_file(sample.file);
      if (xxh128(bytes) != sample.content) throw Error(ExitCode::bad_input, "was changed while the dataset was read");
      use(bytes);
      return true;
    } catch (const Error& error) {
      if (error.exit_code() != ExitCode::bad_input && error.exit_code() != ExitCode::not_found) throw;
      bad_images_.push_back(sample.file.string() + ": " + error.what());
      return false;
    }
  }

  const Store& store_;
  const data::Dataset& dataset_;
  const Encoders& encoders_;
  const BuildOptions& options_;
  Saver saver_;
  Built built_;
  std::map<std::string_view, std::map<std::string, bool>> known_;  // kind -> key -> there
  std::map<std::string, const data::Sample*> missing_images_;
  std::map<std::string, std::string> missing_texts_;
  std::map<const data::Sample*, data::Image> kept_;
  std::vector<std::string> bad_images_;
  uint64_t verified_bytes_ = 0, kept_bytes_ = 0;
};

}  // namespace

int64_t captions_of_call(const BuildOptions& options, int64_t bytes) {
  return std::clamp<int64_t>(options.bytes_per_call / std::max<int64_t>(bytes, 1), 1, options.captions_per_call);
}

Built build(const Store& store, const data::Dataset& dataset, std::span<const std::string> more_captions,
            const Encoders& encoders, const BuildOptions& options) {
  return Builder(store, dataset, encoders, options).run(more_captions);
}

}  // namespace trainer::cache
