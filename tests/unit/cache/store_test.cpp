#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <weights/write.hpp>

#include "helpers.hpp"

namespace trainer::cache {
namespace {

const std::string kKey = "ab34567890123456789012345678901f";

class StoreTest : public CacheTest {
 protected:
  StoreTest() : file_(folder_ / "cache/text/ab" / (kKey + ".safetensors")) {}
  std::string state() const {
    const Store::State state = store().check(kText, kKey, true);
    return state.kind == Store::State::Kind::present  ? "present"
           : state.kind == Store::State::Kind::absent ? "absent"
                                                      : state.reason;
  }
  std::string damage(const std::string& reason) const { return "cache entry " + file_.string() + ": " + reason; }
  std::filesystem::path file_;
};

TEST_F(StoreTest, WhatGoesInComesOut) {
  EXPECT_EQ(state(), "absent");
  const NamedTensors tensors = {{"embeds", at::arange(6, at::kFloat).reshape({2, 3}).t()},
                                {"mask", at::zeros({4}, at::kBool)},
                                {"half", at::arange(5, at::kBFloat16)}};
  store().save(kText, kKey, tensors, "a fox");
  EXPECT_TRUE(std::filesystem::exists(file_));
  EXPECT_EQ(state(), "present");
  const NamedTensors back = store().load(kText, kKey);
  ASSERT_EQ(back.size(), 3U);
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(back.at(name).scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(back.at(name), tensor)) << name;
  }
}

TEST_F(StoreTest, NothingNonFiniteIsKept) {
  EXPECT_EQ(message_of([&] {
              store().save(kText, kKey, {{"embeds", at::full({2}, INFINITY, at::kBFloat16)}}, "caption \"x\"");
            }),
            "caption \"x\": tensor \"embeds\" holds NaN or infinity and is not cached");
  EXPECT_EQ(state(), "absent");
}

TEST_F(StoreTest, OnlyOldFilesOfKilledProcessesAreDeleted) {
  namespace fs = std::filesystem;
  const fs::path cache = store().folder();
  const auto write = [&](const std::string& name, int hours) {
    fs::create_directories((cache / name).parent_path());
    write_file_atomically(cache / name, "half");
    fs::last_write_time(cache / name, fs::file_time_type::clock::now() - std::chrono::hours(hours));
  };
  const std::vector<std::string> kept = {"latents/ab/old.safetensors", "latents/ab/.other.tmp-1-0",
                                         "some/where/else/.old.safetensors.tmp-1-0"};
  for (const std::string& name : kept) write(name, 25);
  write("latents/ab/.old.safetensors.tmp-1-0", 25);
  write("latents/cd/.new.safetensors.tmp-1-0", 23);
  store().remove_unfinished(std::chrono::hours(24));
  EXPECT_FALSE(fs::exists(cache / "latents/ab/.old.safetensors.tmp-1-0"));
  EXPECT_TRUE(fs::exists(cache / "latents/cd/.new.safetensors.tmp-1-0")) << "somebody may be writing it";
  for (const std::string& name : kept) EXPECT_TRUE(fs::exists(cache / name)) << "of others: " << name;
  Store(folder_ / "nowhere").remove_unfinished(std::chrono::hours(24));
}

TEST_F(StoreTest, DamageOfEveryKindIsFound) {
  store().save(kText, kKey, {{"embeds", at::arange(64, at::kFloat)}}, "a fox");
  const std::string good = read_file(file_, 1 << 20, "entry");
  std::string flipped = good;
  flipped[good.size() - 100] = static_cast<char>(flipped[good.size() - 100] ^ 1);
  write_file_atomically(file_, flipped);
  EXPECT_EQ(state(), damage("the checksum does not fit the data"));
  EXPECT_EQ(message_of([&] { static_cast<void>(store().load(kText, kKey)); }),
            damage("the checksum does not fit the data; remove the file, it is then made again"));
  EXPECT_EQ(store().check(kText, kKey, false).kind, Store::State::Kind::present);  // the header is in order
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, good.size() / 2, good.size() - 1}) {
    write_file_atomically(file_, good.substr(0, size));
    EXPECT_EQ(store().check(kText, kKey, false).kind, Store::State::Kind::damaged) << size;
  }
  write_file_atomically(file_, good);
  EXPECT_EQ(state(), "present");
}

TEST_F(StoreTest, AnEntryOfAnotherKeyOrFormatIsDamaged) {
  store().save(kText, kKey, {{"embeds", at::zeros({2})}}, "a fox");
  const std::string other = "ab00000000000000000000000000000f";
  std::filesystem::copy_file(file_, store().file(kText, other));
  EXPECT_NE(store().check(kText, other, false).reason.find("is an entry of another key"), std::string::npos);
  weights::write_safetensors(file_, {{"embeds", at::zeros({2})}}, {});
  EXPECT_EQ(state(), damage("is no cache entry of this version"));
  weights::write_safetensors(file_, {{"embeds", at::full({2}, NAN)}},
                             {{"format", "trainer cache entry 1"}, {"kind", "text"}, {"key", kKey}});
  EXPECT_EQ(state(), damage("tensor \"embeds\" holds NaN or infinity"));
}

}  // namespace
}  // namespace trainer::cache
