#include "transport/blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace arlo::transport {
namespace {

constexpr std::size_t kKept = 32;         // 4 MB
constexpr std::size_t kBlocksAtOnce = 8;  // 1 MB

char* map_block() {
  void* const block = mmap(nullptr, Blocks::kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  return static_cast<char*>(block);
}

void unmap(char* block) { munmap(block, Blocks::kBytes); }

}  // namespace

thread_local constinit FreeBlocks* FreeBlocks::here_ = nullptr;

void Blocks::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t within = size_ % kBytes;
    if (within == 0) {
      blocks_.reserve(blocks_.size() + 1);
      if (FreeBlocks* const here = FreeBlocks::here_; here != nullptr && !here->free_.empty()) {
        blocks_.push_back(here->free_.back());
        here->free_.pop_back();
      } else {
        blocks_.push_back(map_block());
      }
    }
    const std::size_t some = std::min(kBytes - within, bytes.size());
    std::copy_n(bytes.data(), some, blocks_.back() + within);
    bytes.remove_prefix(some);
    size_ += some;
  }
}

void Blocks::release(char* block) {
  if (FreeBlocks* const here = FreeBlocks::here_) {
    here->free_.push_back(block);
  } else {
    unmap(block);
  }
}

void Blocks::clear() {
  std::ranges::for_each(blocks_, release);
  std::vector<char*>().swap(blocks_);
  size_ = 0;
}

std::string Blocks::take() {
  std::string all;
  all.reserve(size_);
  for (char* const block : std::exchange(blocks_, {})) {
    all.append(block, std::min(kBytes, size_ - all.size()));
    release(block);
  }
  size_ = 0;
  return all;
}

FreeBlocks::FreeBlocks() { here_ = this; }

FreeBlocks::~FreeBlocks() {
  here_ = nullptr;
  std::ranges::for_each(free_, unmap);
}

bool FreeBlocks::give_back() {
  for (std::size_t i = 0; i < kBlocksAtOnce && free_.size() > kKept; ++i) {
    unmap(free_.back());
    free_.pop_back();
  }
  return free_.size() > kKept;
}

}  // namespace arlo::transport
