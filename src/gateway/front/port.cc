#include "gateway/front/port.h"

#include <future>
#include <stdexcept>

namespace arlo::gateway {

Port::Port(const char* option, const std::string& address, Lanes& lanes,
           const std::function<std::unique_ptr<Part>(Lane&)>& make)
    : lanes_(lanes) {
  if (address.empty()) return;
  transport::Listening listening;
  try {
    listening = transport::listen_on(address);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(std::string(option) + " '" + address + "' cannot be served: " + error.what());
  }
  address_ = listening.address;
  for (const auto& lane : lanes_) parts_.push_back(make(*lane));
  // Lanes take turns, because connections last and carry about the same load each.
  const auto take = [this](int fd) {
    const std::size_t at = next_++ % lanes_.size();
    lanes_[at]->loop().run_here([part = parts_[at].get(), fd] { part->adopt(fd); });
  };
  parts_.front()->listener_.emplace(lanes_.front()->loop(), listening.fd, take,
                                    [this] { on_each([](Part& part) { part.run_out(); }); });
}

void Port::on_each(const std::function<void(Part&)>& work) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    lanes_[i]->loop().run_here([part = parts_[i].get(), work] { work(*part); });
  }
}

void Port::drain() {
  on_each([](Part& part) {
    part.listener_.reset();
    part.drain();
  });
}

void Port::close_all() {
  on_each([](Part& part) { part.close_all(); });
}

std::size_t Port::connections() {
  std::size_t all = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::promise<std::size_t> count;
    lanes_[i]->loop().run_here([&] { count.set_value(parts_[i]->connections()); });
    all += count.get_future().get();
  }
  return all;
}

}  // namespace arlo::gateway
