# Ruby, which has handlers of its own for SIGSEGV and others: `ruby host.rb LIBRARY [WORD…]`, where the library is host.c's.
require 'fiddle'

library = Fiddle.dlopen(ARGV.shift)
call = ->(name) { Fiddle::Function.new(library[name], [], Fiddle::TYPE_VOID).call }

ARGV.each do |word|
  case word
  when 'install' then call['host_install']
  when 'crash' then call['host_crash']
  when 'errors' then call['host_report_errors']
  when 'exceptions'
    1000.times do
      begin
        Integer('none')
      rescue ArgumentError
        next
      end
    end
  when 'kill'
    Process.kill(:SEGV, Process.pid)
    sleep
  end
end
