// Writes the seeds and the dictionary of fuzz_pipeline: seeds_pipeline FOLDER DICTIONARY. Random bytes are journeys of
// their own, always the same ones here.
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: seeds_pipeline FOLDER DICTIONARY");
  const std::filesystem::path folder = argv[1];
  std::filesystem::create_directories(folder);
  std::mt19937 random(1);
  for (int seed = 0; seed < 24; ++seed) {
    std::string bytes;
    for (int i = 0; i < 200 + 60 * seed; ++i) bytes += static_cast<char>(random() & 0xff);
    std::ofstream(folder / ("journey" + std::to_string(seed)), std::ios::binary) << bytes;
  }
  std::ofstream out(argv[2]);
  out << "none=\"\\x00\\x00\\x00\"\n";
  if (!out.flush()) throw std::runtime_error("cannot write the dictionary");
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
