/// @file Values made ahead: order, errors, and an end in the middle of work.
#include <gtest/gtest.h>

#include <atomic>
#include <base/ahead.hpp>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trainer {
namespace {

TEST(Ahead, MakesTheNextWhileOneIsUsed) {
  std::atomic<int> made{0};
  Ahead<int, std::unique_ptr<int>> ahead([&](const int& key) {
    made = key;
    return std::make_unique<int>(10 * key);
  });
  for (int key = 1; key < 200; ++key) {
    EXPECT_EQ(*ahead.take(key, key + 1), 10 * key);
    if (key % 50 == 0) {
      while (made != key + 1) std::this_thread::yield();  // without anybody asking for it
    }
  }
}

TEST(Ahead, MakesEachOnceInTheOrderOfCallsAndOnOneOtherThread) {
  std::vector<int> made;  // read after the thread's end
  std::thread::id maker;
  {
    Ahead<int, int> ahead([&](const int& key) {
      EXPECT_TRUE(made.empty() || maker == std::this_thread::get_id());
      maker = std::this_thread::get_id();
      made.push_back(key);
      return key;
    });
    for (const int key : {1, 2, 3}) EXPECT_EQ(ahead.take(key, key + 1), key);
  }
  EXPECT_NE(maker, std::this_thread::get_id());
  made.resize(3);  // whether 4 was begun before the end is a matter of time
  EXPECT_EQ(made, (std::vector<int>{1, 2, 3}));
}

TEST(Ahead, AnotherThanTheNextMayBeTaken) {
  Ahead<int, int> ahead([](const int& key) {
    std::this_thread::sleep_for(std::chrono::milliseconds(key % 3));
    return key;
  });
  for (const int key : {1, 7, 2, 2, 100, 3}) EXPECT_EQ(ahead.take(key, key + 1), key);
}

TEST(Ahead, AnErrorComesOutWhereItsKeyIsTaken) {
  Ahead<int, int> ahead([](const int& key) {
    if (key == 2) throw std::runtime_error("entry " + std::to_string(key) + " is damaged");
    return key;
  });
  EXPECT_EQ(ahead.take(1, 2), 1);
  try {
    ahead.take(2, 3);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "entry 2 is damaged");
  }
  EXPECT_EQ(ahead.take(3, 2), 3) << "and one that is never taken is no error";
  EXPECT_EQ(ahead.take(4, 5), 4);
}

TEST(Ahead, EndsWhileItWorks) {
  std::atomic<bool> begun{false}, ended{false};
  {
    Ahead<int, int> ahead([&](const int& key) {
      if (key == 1) return key;
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ended = true;
      return key;
    });
    ahead.take(1, 2);
    while (!begun) std::this_thread::yield();
  }
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace trainer
