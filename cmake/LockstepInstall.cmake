# What `cmake --install` (and `make install`) lays down: the program, both libraries, the public
# headers, lockstep.pc and the CMake package. All of it finds its place relative to itself, so a
# tree may be installed with any --prefix and moved later.
include(CMakePackageConfigHelpers)

# A static library's user links what it uses: these, as names, in lockstep.pc and the CMake package.
set(static_libs jansson sodium xxhash utf8proc z ${LS_GEMM_LIBRARY} m)
if(LS_GEMM_LIBRARY STREQUAL "cblas")
  get_filename_component(cblas_name ${CBLAS_LIBRARY} NAME_WE)
  string(REGEX REPLACE "^lib" "" cblas_name ${cblas_name})
  list(TRANSFORM static_libs REPLACE "^cblas$" ${cblas_name})
endif()
if(LS_OPENMP)
  list(APPEND static_libs ${OpenMP_C_LIB_NAMES})
endif()
list(REMOVE_ITEM static_libs pthread)
target_link_libraries(lockstep_static INTERFACE "$<INSTALL_INTERFACE:${static_libs};-pthread>")

install(TARGETS lockstep_shared lockstep_static EXPORT lockstepTargets)
install(TARGETS lockstep)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep TYPE INCLUDE FILES_MATCHING PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/lockstepConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/lockstepConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lockstepConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/lockstepConfig.cmake
              ${PROJECT_BINARY_DIR}/package/lockstepConfigVersion.cmake
        DESTINATION ${package_dir})

list(TRANSFORM static_libs PREPEND -l)
list(JOIN static_libs " " LS_STATIC_LIBS)
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH LS_PC_TO_PREFIX /${pc_dir} /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/lockstep.pc.in
               ${PROJECT_BINARY_DIR}/package/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/lockstep.pc DESTINATION ${pc_dir})
