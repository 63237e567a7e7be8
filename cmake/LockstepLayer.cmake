# A layer is one folder of src/ (see src/README.md).
#
#   lockstep_layer(NAME LEVEL n BELOW layer… LIBS target…)   a static library, lockstep_NAME
#   lockstep_program(NAME LEVEL n BELOW layer…)              the top: an executable, lockstep
#
# BELOW is all that the layer may include and call. Two checks hold it to that: layer_NAME links all
# of the layer's objects with nothing but what is below, so an upward call is an undefined symbol in
# every full build, and the test house.layers reads these calls as a table and compares every
# #include with it.
define_property(GLOBAL PROPERTY LS_LAYERS BRIEF_DOCS "Names of the layers, lowest first")
define_property(GLOBAL PROPERTY LS_LIBS BRIEF_DOCS "Outside libraries that the layers use")

# The sources of a layer. A lower level for everything in BELOW keeps siblings apart.
function(lockstep_layer_sources name level below sources)
  set_property(GLOBAL PROPERTY LS_LEVEL_${name} ${level})
  foreach(layer ${below})
    get_property(level_below GLOBAL PROPERTY LS_LEVEL_${layer})
    if(NOT level_below LESS level)
      message(FATAL_ERROR "layer ${name} (level ${level}) may not stand on ${layer}: "
                          "expected a lower level, found '${level_below}'")
    endif()
  endforeach()
  file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.c)
  set(${sources} ${found} PARENT_SCOPE)
endfunction()

function(lockstep_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "LEVEL" "BELOW;LIBS")
  lockstep_layer_sources(${name} ${ARG_LEVEL} "${ARG_BELOW}" sources)
  list(TRANSFORM ARG_BELOW PREPEND lockstep_ OUTPUT_VARIABLE below)
  add_library(lockstep_${name} STATIC ${sources})
  target_include_directories(lockstep_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src
                                                     ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(lockstep_${name} PRIVATE lockstep_compile PUBLIC ${below} ${ARG_LIBS})
  set_property(GLOBAL APPEND PROPERTY LS_LAYERS ${name})
  set_property(GLOBAL APPEND PROPERTY LS_LIBS ${ARG_LIBS})

  # A sanitizer's run-time symbols are the program's to bring: this link would miss them.
  if(NOT LS_SANITIZE)
    add_library(layer_${name} SHARED $<TARGET_OBJECTS:lockstep_${name}>)
    target_link_libraries(layer_${name} PRIVATE ${below} ${ARG_LIBS})
    target_link_options(layer_${name} PRIVATE -Wl,--no-undefined)
    set_target_properties(layer_${name} PROPERTIES
      LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/layers)
  endif()
endfunction()

function(lockstep_program name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "LEVEL" "BELOW")
  lockstep_layer_sources(${name} ${ARG_LEVEL} "${ARG_BELOW}" sources)
  list(TRANSFORM ARG_BELOW PREPEND lockstep_ OUTPUT_VARIABLE below)
  add_executable(lockstep ${sources})
  target_link_libraries(lockstep PRIVATE lockstep_compile ${below})
endfunction()
