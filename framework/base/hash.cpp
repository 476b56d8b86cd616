#include <base/hash.hpp>
#include <base/heartbeat.hpp>

#include <trainer/sdk/error.hpp>

#include <openssl/evp.h>
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

namespace trainer {
namespace {

std::string hex_digits(const unsigned char* bytes, std::size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string hex_digits(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return hex_digits(canonical.digest, sizeof canonical.digest);
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    require(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void add(std::string_view bytes) { require(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1); }
  std::string hex() {
    std::array<unsigned char, 32> digest;
    require(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1);
    return hex_digits(digest.data(), digest.size());
  }

 private:
  static void require(bool ok) {
    if (!ok) throw Error(ExitCode::failed, "libcrypto cannot compute SHA-256");
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

struct Descriptor {
  int fd;
  ~Descriptor() { close(fd); }
};

/// Hands the file to `consume` in chunks.
void read_chunks(const std::filesystem::path& file, const std::function<void(std::string_view)>& consume) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    throw Error(missing ? ExitCode::not_found : ExitCode::io, "cannot open " + file.string() + ": " + strerror(errno));
  }
  const Descriptor descriptor{fd};
  std::vector<char> buffer(std::size_t{1} << 20);
  for (;;) {
    const ssize_t count = read(fd, buffer.data(), buffer.size());
    if (count == 0) return;
    beat();
    if (count > 0)
      consume({buffer.data(), static_cast<std::size_t>(count)});
    else if (errno != EINTR)
      throw Error(ExitCode::io, "cannot read " + file.string() + ": " + strerror(errno));
  }
}

}  // namespace

struct FieldHash::Impl {
  XXH3_state_t state;

  void add_number(uint64_t number) {
    static_assert(std::endian::native == std::endian::little, "hashes are over little-endian lengths");
    XXH3_128bits_update(&state, &number, sizeof number);
  }
};

FieldHash::FieldHash() : impl_(std::make_unique<Impl>()) { XXH3_128bits_reset(&impl_->state); }
FieldHash::~FieldHash() = default;

FieldHash& FieldHash::add(std::string_view field) {
  impl_->add_number(field.size());
  XXH3_128bits_update(&impl_->state, field.data(), field.size());
  return *this;
}

FieldHash& FieldHash::add(int64_t field) {
  constexpr uint64_t kNumberMark = ~uint64_t{0};  // no text has this length, so a number never equals a text
  impl_->add_number(kNumberMark);
  impl_->add_number(static_cast<uint64_t>(field));
  return *this;
}

std::string FieldHash::hex() const { return hex_digits(XXH3_128bits_digest(&impl_->state)); }

std::string xxh128(std::string_view bytes) { return hex_digits(XXH3_128bits(bytes.data(), bytes.size())); }

std::string sha256(std::string_view bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.hex();
}

std::string xxh128_file(const std::filesystem::path& file) {
  const auto state = std::make_unique<XXH3_state_t>();
  XXH3_128bits_reset(state.get());
  read_chunks(file, [&](std::string_view chunk) { XXH3_128bits_update(state.get(), chunk.data(), chunk.size()); });
  return hex_digits(XXH3_128bits_digest(state.get()));
}

std::string sha256_file(const std::filesystem::path& file) {
  Sha256 hash;
  read_chunks(file, [&](std::string_view chunk) { hash.add(chunk); });
  return hash.hex();
}

}  // namespace trainer
